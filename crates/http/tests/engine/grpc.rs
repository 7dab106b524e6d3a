//! An endpoint of gRPC: one message in, one message out.

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Response};

/// The message of a question, without its length.
pub(crate) async fn question(mut body: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        all.extend(data);
    }
    all.split_off(5)
}

/// Answers with a message and the status 0.
pub(crate) fn answer(respond: &mut SendResponse<Bytes>, message: &[u8]) {
    let head = Response::builder().header("content-type", "application/grpc");
    let mut send = respond.send_response(head.body(()).unwrap(), false).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    send.send_data(frame.freeze(), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    send.send_trailers(trailers).unwrap();
}
