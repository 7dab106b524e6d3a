//! Discovery resources and policies from a control plane, enrolments from a node agent, and lists
//! of pods from an API server: no bytes may panic, and what converts must convert back to something
//! equal.
#![no_main]

use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::service::ServiceHttp;
use ambit_model::service::Service;
use ambit_model::workload::Workload;
use ambit_wire::convert::policy;
use ambit_wire::kubernetes;
use ambit_wire::proto::ambit::http;
use ambit_wire::proto::istio::{security, workload};
use ambit_wire::zds;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    let mut pods = kubernetes::PodListReader::default();
    for piece in bytes.chunks(7) {
        pods.feed(piece);
        while let Ok(Some(_)) = pods.next_part() {}
    }
    if let Ok(request) = zds::decode_request(bytes) {
        let again = zds::encode_request(&request).map(|bytes| zds::decode_request(&bytes));
        // What came in pieces may be too long for a packet once it is put together.
        if let Ok(again) = again {
            assert_eq!(again.as_ref().ok(), Some(&request));
        }
    }
    if let Ok(message) = workload::Workload::decode(bytes)
        && let Ok(value) = Workload::try_from(message)
    {
        let again = Workload::try_from(workload::Workload::from(&value));
        assert_eq!(again.as_ref(), Ok(&value));
    }
    if let Ok(message) = workload::Service::decode(bytes)
        && let Ok(value) = Service::try_from(message)
    {
        let again = Service::try_from(workload::Service::from(&value));
        assert_eq!(again.as_ref(), Ok(&value));
    }
    if let Ok(message) = http::Service::decode(bytes)
        && let Ok(value) = ServiceHttp::try_from(message)
    {
        let again = ServiceHttp::try_from(http::Service::from(&value));
        assert_eq!(again.as_ref(), Ok(&value));
    }
    if let Ok(message) = http::RequestPolicy::decode(bytes)
        && let Ok(value) = RequestPolicy::try_from(message)
    {
        let again = RequestPolicy::try_from(http::RequestPolicy::from(&value));
        assert_eq!(again.as_ref(), Ok(&value));
    }
    if let Ok(reading) = policy::read(bytes)
        && reading.unreadable.is_empty()
    {
        let encoded = security::Authorization::from(&reading.policy).encode_to_vec();
        let again = policy::read(&encoded).map(|reading| reading.policy);
        assert_eq!(again.as_ref(), Ok(&reading.policy));
    }
});
