//! Inputs on which HTTP parsers differ, and what becomes of each.
//!
//! Where hyper reads more requests than we do, the input is one that we refuse on purpose;
//! `docs/design/layer-7.md` says why for each kind.

/// One input.
pub(crate) struct Entry {
    /// What is odd about it.
    pub(crate) name: &'static str,
    /// What a client sends.
    pub(crate) input: &'static [u8],
    /// The whole requests that we read, and what comes behind them.
    pub(crate) ours: &'static str,
    /// The whole requests that hyper reads.
    pub(crate) hyper: usize,
}

const fn entry(
    name: &'static str,
    input: &'static [u8],
    ours: &'static str,
    hyper: usize,
) -> Entry {
    Entry { name, input, ours, hyper }
}

/// The next request on the connection is `GET /next`: a smuggled one would come before it.
pub(crate) const CORPUS: &[Entry] = &[
    entry("plain", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "1 end", 1),
    entry(
        "two in a row",
        b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "2 end",
        2,
    ),
    entry(
        "a length",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "chunks",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "chunks with trailers",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\
          \r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nx-b: 2\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "chunks with dropped trailers",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\nCookie: 1\r\nx-b: 2\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "2 end",
        2,
    ),
    entry(
        "CL.TE",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\
          \r\n0\r\n\r\nGGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 LengthAndCoding",
        1,
    ),
    entry(
        "TE.CL",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\
          \r\n5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n",
        "0 LengthAndCoding",
        0,
    ),
    entry(
        "TE.TE with identity",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: ide\
          ntity\r\n\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkedNotLast",
        0,
    ),
    entry(
        "TE twice",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chu\
          nked\r\n\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkedNotLast",
        2,
    ),
    entry(
        "TE xchunked",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TransferCoding",
        0,
    ),
    entry(
        "TE chunked, identity",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkedNotLast",
        0,
    ),
    entry(
        "TE identity, chunked",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity, chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TransferCoding",
        2,
    ),
    entry(
        "TE gzip, chunked",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TransferCoding",
        2,
    ),
    entry(
        "TE identity",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\
          \r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TransferCoding",
        0,
    ),
    entry(
        "TE empty",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 ChunkedNotLast",
        0,
    ),
    entry(
        "TE with vertical tab",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 FieldValue",
        0,
    ),
    entry(
        "TE with parameter",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked;q=1\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TransferCoding",
        0,
    ),
    entry(
        "TE in capitals",
        b"POST / HTTP/1.1\r\nHost: h\r\nTRANSFER-ENCODING: CHUNKED\r\n\r\n\
          0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "TE behind a tab",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\tchunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "TE, space before colon",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 SpaceBeforeColon",
        0,
    ),
    entry(
        "TE in a folded line",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ObsFold",
        0,
    ),
    entry(
        "TE behind a folded line",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\r\n Transfer-Encoding: chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ObsFold",
        0,
    ),
    entry(
        "TE behind a bare LF",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\nTransfer-Encoding: chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 BareLf",
        2,
    ),
    entry(
        "TE behind a bare CR",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\rTransfer-Encoding: chunked\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 BareCr",
        0,
    ),
    entry(
        "TE quoted",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\
          \r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TransferCoding",
        0,
    ),
    entry(
        "TE in HTTP/1.0",
        b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 CodingInHttp10",
        0,
    ),
    entry(
        "CL +5",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhelloGET /next HTTP/1.1\r\
          \nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL -5",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\nhelloGET /next HTTP/1.1\r\
          \nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL 5, 5",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\nhelloGET /next HTTP/1.1\
          \r\nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL twice, equal",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\
          \r\nhelloGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ContentLength",
        2,
    ),
    entry(
        "CL twice, different",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\
          \r\nhelloGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL 0x5",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\nhelloGET /next HTTP/1.1\r\
          \nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL overflows",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551621\r\n\
          \r\nhelloGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL empty",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\nhelloGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL with a space inside",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5 5\r\n\r\nhelloGET /next HTTP/1.1\r\
          \nHost: h\r\n\r\n",
        "0 ContentLength",
        0,
    ),
    entry(
        "CL with zeros",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 005\r\n\r\nhelloGET /next HTTP/1.1\r\
          \nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "CL, space before colon",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhelloGET /next HTTP/1.1\r\
          \nHost: h\r\n\r\n",
        "0 SpaceBeforeColon",
        0,
    ),
    entry(
        "CL with NUL",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\x00\r\n\r\nhelloGET /next HTTP/1.1\
          \r\nHost: h\r\n\r\n",
        "0 FieldValue",
        0,
    ),
    entry(
        "CL too long for the body",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\nhello",
        "0 partial",
        0,
    ),
    entry(
        "CL named by Connection",
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: content-length\r\nContent-Length: 5\r\n\
          \r\nhelloGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "CL of GET",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "chunk extension",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5;a=b\r\nhello\r\n0;c\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "2 end",
        2,
    ),
    entry(
        "chunk extension with bare LF",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5;a\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 BareLf",
        0,
    ),
    entry(
        "chunk extension with bare CR",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5;a\rb\r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "0 BareCr",
        0,
    ),
    entry(
        "chunk size with bare LF",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 BareLf",
        0,
    ),
    entry(
        "chunk data with bare LF",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 BareLf",
        0,
    ),
    entry(
        "chunk size 0x5",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0x5\r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkSize",
        0,
    ),
    entry(
        "chunk size +5",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          +5\r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkSize",
        0,
    ),
    entry(
        "chunk size with space",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5 \r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkSize",
        2,
    ),
    entry(
        "chunk size overflows",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          10000000000000005\r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 ChunkSize",
        0,
    ),
    entry(
        "chunk size with many zeros",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          00000000000000000005\r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 ChunkSize",
        2,
    ),
    entry(
        "chunk longer than its size",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello!\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkEnd",
        0,
    ),
    entry(
        "chunk without end",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkEnd",
        0,
    ),
    entry(
        "chunk size missing",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          \r\nhello\r\n0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ChunkSize",
        0,
    ),
    entry(
        "last chunk missing",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello\r\n",
        "0 partial",
        0,
    ),
    entry(
        "trailer that frames",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\nContent-Length: 5\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "0 Trailer",
        2,
    ),
    entry(
        "trailer that routes",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\nHost: other\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 Trailer",
        2,
    ),
    entry(
        "trailer with bare LF",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\nx: y\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 BareLf",
        1,
    ),
    entry(
        "trailer in a folded line",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\nx: y\r\n z\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 ObsFold",
        0,
    ),
    entry(
        "request for a trailer",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
          0\r\nGET /x HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "0 FieldName",
        0,
    ),
    entry("bare LF everywhere", b"GET / HTTP/1.1\nHost: h\n\n", "0 BareLf", 1),
    entry(
        "bare LF before the end",
        b"GET / HTTP/1.1\r\nHost: h\r\n\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "0 BareLf",
        2,
    ),
    entry("bare LF in the request line", b"GET / HTTP/1.1\nHost: h\r\n\r\n", "0 BareLf", 1),
    entry("bare CR for a line end", b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", "0 BareCr", 0),
    entry("CR CR LF", b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", "0 BareCr", 0),
    entry(
        "folded line",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 ObsFold",
        0,
    ),
    entry("folded first line", b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", "0 ObsFold", 0),
    entry(
        "space in a name",
        b"POST / HTTP/1.1\r\nHost: h\r\nX y: a\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 FieldName",
        0,
    ),
    entry(
        "name missing",
        b"POST / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 FieldName",
        0,
    ),
    entry(
        "colon missing",
        b"POST / HTTP/1.1\r\nHost: h\r\nX\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 FieldName",
        0,
    ),
    entry(
        "NUL in a value",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 FieldValue",
        0,
    ),
    entry(
        "NUL in a name",
        b"POST / HTTP/1.1\r\nHost: h\r\nX\x00: a\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 FieldName",
        0,
    ),
    entry(
        "high bytes in a value",
        b"POST / HTTP/1.1\r\nHost: h\r\nX: caf\xe9\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "high bytes in a name",
        b"POST / HTTP/1.1\r\nHost: h\r\ncaf\xe9: x\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "0 FieldName",
        0,
    ),
    entry(
        "empty value",
        b"POST / HTTP/1.1\r\nHost: h\r\nX:\r\nY: \t\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry("Host missing", b"GET / HTTP/1.1\r\n\r\n", "0 HostMissing", 1),
    entry("Host twice", b"GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", "0 HostRepeated", 1),
    entry(
        "Host twice, equal",
        b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
        "0 HostRepeated",
        1,
    ),
    entry("Host as a list", b"GET / HTTP/1.1\r\nHost: h, i\r\n\r\n", "0 Host", 1),
    entry("Host with a path", b"GET / HTTP/1.1\r\nHost: h/x\r\n\r\n", "0 Host", 1),
    entry("Host with a user", b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", "0 UserInfo", 1),
    entry("Host empty", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", "0 Host", 1),
    entry("Host with an empty port", b"GET / HTTP/1.1\r\nHost: h:\r\n\r\n", "0 Host", 1),
    entry(
        "absolute target",
        b"GET http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "absolute target, another Host",
        b"GET http://h/a HTTP/1.1\r\nHost: other\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "absolute target without path",
        b"GET http://h:80?b HTTP/1.1\r\nHost: h\r\n\r\n",
        "1 end",
        1,
    ),
    entry(
        "absolute target with a user",
        b"GET http://u:p@h/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 UserInfo",
        1,
    ),
    entry(
        "absolute target of another scheme",
        b"GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 TargetScheme",
        1,
    ),
    entry(
        "absolute target of https",
        b"GET https://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 HttpsInPlainText",
        1,
    ),
    entry(
        "absolute target without host",
        b"GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 Host",
        0,
    ),
    entry("two slashes", b"GET //other/a HTTP/1.1\r\nHost: h\r\n\r\n", "1 end", 1),
    entry("fragment", b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", "0 Fragment", 1),
    entry("backslash", b"GET /a\\..\\b HTTP/1.1\r\nHost: h\r\n\r\n", "1 end", 1),
    entry("backslash first", b"GET \\a HTTP/1.1\r\nHost: h\r\n\r\n", "0 Target", 0),
    entry(
        "quotes and brackets in a target",
        b"GET /{\"a\":[1]} HTTP/1.1\r\nHost: h\r\n\r\n",
        "0 Target",
        1,
    ),
    entry("high bytes in a target", b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n", "0 Target", 1),
    entry("space in a target", b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "0 RequestLine", 0),
    entry("target without slash", b"GET a HTTP/1.1\r\nHost: h\r\n\r\n", "0 Target", 1),
    entry(
        "asterisk",
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "2 end",
        2,
    ),
    entry(
        "asterisk of a proxy",
        b"OPTIONS http://h HTTP/1.1\r\nHost: other\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry("asterisk of GET", b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", "0 TargetForm", 1),
    entry("CONNECT", b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\nbytes", "1 switch", 1),
    entry("CONNECT to a path", b"CONNECT /a HTTP/1.1\r\nHost: h\r\n\r\n", "0 TargetForm", 1),
    entry("CONNECT without port", b"CONNECT h HTTP/1.1\r\nHost: h\r\n\r\n", "0 TargetForm", 1),
    entry(
        "CONNECT with a length",
        b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n\
          hello",
        "0 ContentLength",
        1,
    ),
    entry("method in lower case", b"get / HTTP/1.1\r\nHost: h\r\n\r\n", "1 end", 1),
    entry("method that is no token", b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", "0 Method", 0),
    entry("method with a space before", b" GET / HTTP/1.1\r\nHost: h\r\n\r\n", "0 Method", 0),
    entry("two spaces", b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "0 Target", 0),
    entry("tab for a space", b"GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", "0 Method", 0),
    entry("space behind the version", b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n", "0 RequestLine", 0),
    entry("HTTP/0.9", b"GET /\r\n", "0 RequestLine", 0),
    entry("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", "0 Version", 0),
    entry("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "0 Version", 0),
    entry("version in lower case", b"GET / http/1.1\r\nHost: h\r\n\r\n", "0 RequestLine", 0),
    entry(
        "empty line before",
        b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\
          \r\n",
        "2 end",
        2,
    ),
    entry("empty lines before", b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "0 EmptyLines", 1),
    entry(
        "empty line behind a body",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\r\n\
          GET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "HTTP/1.0",
        b"GET / HTTP/1.0\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "1 end",
        1,
    ),
    entry("HTTP/1.0 without Host", b"GET / HTTP/1.0\r\n\r\n", "0 HostMissing", 1),
    entry("HTTP/1.0 with the host in the target", b"GET http://h/ HTTP/1.0\r\n\r\n", "1 end", 1),
    entry(
        "HTTP/1.0 kept",
        b"GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n\
          GET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "close",
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /next HTTP/1.1\r\n\
          Host: h\r\n\r\n",
        "1 end",
        1,
    ),
    entry(
        "keep-alive and close",
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, close\r\n\
          \r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "1 end",
        1,
    ),
    entry(
        "close, then keep-alive",
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: keep-alive\r\n\
          \r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "1 end",
        1,
    ),
    entry(
        "Expect",
        b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\
          \r\nhelloGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry(
        "WebSocket",
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
          \r\n\x81\x00",
        "1 switch",
        1,
    ),
    entry(
        "upgrade to h2c",
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\n\
          Upgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n",
        "2 end",
        2,
    ),
    entry("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "0 Method", 0),
];
