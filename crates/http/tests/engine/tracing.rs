//! What a request says of its trace, as it comes and as it is sent on.

use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::rule::Fraction;
use ambit_model::http::telemetry::{Collector, Place, Spans, Way};

use crate::world::{Bed, run};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const OK: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\nx-app: a\r\ncontent-length: 0\r\n\r\n";

fn spans(percent: u32, is_passed_on: bool) -> Arc<Spans> {
    let collector = Arc::new(Collector {
        place: Place::Host("collector".into(), 4317),
        way: Way::Grpc(Vec::new()),
        timeout: Duration::from_secs(1),
    });
    let sampling = Fraction { numerator: percent, denominator: 100 };
    Arc::new(Spans { collector, sampling, is_passed_on, tags: Vec::new(), max_tag_bytes: 256 })
}

/// The fields of this name that the application gets, for a request with these fields.
async fn sent(bed: &Bed, fields: &str, name: &str) -> Vec<String> {
    let heard = bed.hears("web-1", OK);
    let answer = bed.ask(&format!("GET / HTTP/1.1\r\nhost: web\r\n{fields}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let heard = heard.borrow().to_lowercase();
    let of = |line: &str| line.strip_prefix(&format!("{name}: ")).map(str::to_owned);
    heard.lines().filter_map(of).collect()
}

#[test]
fn without_tracing_the_context_passes_as_it_is() {
    run(async |bed| {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let sent = sent(bed, &format!("traceparent: {parent}\r\n"), "traceparent").await;
        assert_eq!(sent, [parent]);
        assert!(bed.last().traced.is_none());
    });
}

#[test]
fn a_sampled_trace_is_continued_whatever_is_drawn_here() {
    run(async |bed| {
        *bed.world.spans.borrow_mut() = Some(spans(0, true));
        let fields = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\ntracestate: a=b\r\n");
        let parents = sent(bed, &fields, "traceparent").await;
        let traced = bed.last().traced.expect("a span");
        assert!(traced.own.is_sampled());
        assert_eq!(traced.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!(parents, [traced.own.to_string()]);
        assert!(parents[0].contains(TRACE) && !parents[0].contains(SPAN), "{parents:?}");
        assert_eq!(sent(bed, &fields, "tracestate").await, ["a=b"]);
    });
}

#[test]
fn an_unsampled_trace_stays_unsampled() {
    run(async |bed| {
        *bed.world.spans.borrow_mut() = Some(spans(100, true));
        let parents =
            sent(bed, &format!("traceparent: 00-{TRACE}-{SPAN}-00\r\n"), "traceparent").await;
        assert!(!bed.last().traced.expect("a span").own.is_sampled());
        assert!(parents[0].ends_with("-00"), "{parents:?}");
    });
}

#[test]
fn a_new_trace_begins_where_none_or_none_that_can_be_read_came() {
    run(async |bed| {
        *bed.world.spans.borrow_mut() = Some(spans(100, true));
        for fields in ["", "traceparent: 00-1-2-01\r\ntracestate: a=b\r\n"] {
            let parents = sent(bed, fields, "traceparent").await;
            let traced = bed.last().traced.expect("a span");
            assert!(traced.own.is_sampled() && traced.parent.is_none());
            assert_eq!(parents, [traced.own.to_string()]);
            assert!(sent(bed, fields, "tracestate").await.is_empty());
        }
        *bed.world.spans.borrow_mut() = Some(spans(0, true));
        let parents = sent(bed, "", "traceparent").await;
        assert!(parents[0].ends_with("-00"), "{parents:?}");
    });
}

#[test]
fn b3_is_answered_in_its_own_form_and_in_w3c() {
    run(async |bed| {
        *bed.world.spans.borrow_mut() = Some(spans(0, true));
        let single = format!("b3: {TRACE}-{SPAN}-1\r\n");
        let sent_single = sent(bed, &single, "b3").await;
        let own = bed.last().traced.expect("a span").own;
        assert_eq!(sent_single, [format!("{TRACE}-{:016x}-1-{SPAN}", own.span_id())]);
        assert_eq!(sent(bed, &single, "traceparent").await.len(), 1);
        let several =
            format!("X-B3-TraceId: {TRACE}\r\nX-B3-SpanId: {SPAN}\r\nX-B3-Sampled: 1\r\n");
        let span = sent(bed, &several, "x-b3-spanid").await;
        let traced = bed.last().traced.expect("a span");
        assert_eq!(span, [format!("{:016x}", traced.own.span_id())]);
        assert_eq!(sent(bed, &several, "x-b3-parentspanid").await, [SPAN]);
        assert_eq!(sent(bed, &several, "x-b3-traceid").await, [TRACE]);
        // A decision alone is heeded.
        assert_eq!(sent(bed, "b3: 0\r\n", "b3").await.len(), 1);
        assert!(!bed.last().traced.expect("a span").own.is_sampled());
    });
}

#[test]
fn a_span_may_be_made_without_passing_it_on() {
    run(async |bed| {
        *bed.world.spans.borrow_mut() = Some(spans(100, false));
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let sent = sent(bed, &format!("traceparent: {parent}\r\n"), "traceparent").await;
        assert_eq!(sent, [parent]);
        let record = bed.last();
        assert_eq!(record.traced.expect("a span").parent, Some(0x00f0_67aa_0ba9_02b7));
        let response = record.response.expect("it was asked for");
        assert!(response.iter().any(|field| field.name == b"x-app" && field.value == b"a"));
    });
}
