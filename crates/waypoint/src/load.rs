//! Metrics of what there is to do, what of it was refused, and which endpoints pass their checks.

use std::fmt;
use std::sync::Arc;

use ambit_http::engine::overload::Pressure;
use ambit_model::http::health::Tally;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::wellness::Wellness;

/// What is read whenever metrics are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pressure: Arc<Pressure>,
    wellness: Arc<Wellness>,
}

impl Load {
    pub(crate) fn new(pressure: Arc<Pressure>, wellness: Arc<Wellness>) -> Self {
        Self { pressure, wellness }
    }

    /// Shows it.
    pub(crate) fn register(&self, into: &mut Registry) {
        into.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Load {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            ("ambit_http_requests_under_way", "Requests under way", self.pressure.requests()),
            (
                "ambit_http_buffered_bytes",
                "Bytes in buffers of requests",
                self.pressure.held_bytes(),
            ),
        ];
        for (name, help, value) in gauges {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode_gauge(&value)?;
        }
        let help = "Requests refused because of overload, by reason";
        let shed = self.pressure.shed().map(|(why, number)| (why.as_str(), number));
        by_reason(&mut encoder, "ambit_http_shed", help, shed)?;
        let help = "Copies of requests that were left out or are not whole, by reason";
        let cut = self.pressure.copies().cut().map(|(why, number)| (why.as_str(), number));
        by_reason(&mut encoder, "ambit_http_mirrors_cut", help, cut)?;
        let tallies = self.wellness.tallies();
        for (name, help, number) in [
            ("ambit_health_check_endpoints", "Endpoints that are checked", |it: &Tally| it.all),
            ("ambit_health_check_healthy", "Endpoints that pass their checks", |it: &Tally| {
                it.healthy
            }),
        ] as [(&str, &str, fn(&Tally) -> usize); 2]
        {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (service, tally) in &tallies {
                let value = i64::try_from(number(tally)).unwrap_or(i64::MAX);
                let labels = [
                    ("destination_service", &*service.hostname),
                    ("destination_service_namespace", &*service.namespace),
                ];
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

fn by_reason(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    numbers: impl Iterator<Item = (&'static str, usize)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (reason, number) in numbers {
        family
            .encode_family(&[("reason", reason)])?
            .encode_counter::<NoLabelSet, u64, u64>(&(number as u64), None)?;
    }
    Ok(())
}
