//! One line of the log: tabs between time, level, scope and message, or one JSON object.
//!
//! An event whose field `whole_line` is set has its line from elsewhere, in a form that the
//! operator has asked for. Whoever sets it has escaped what is in it.

use std::fmt::{self, Write as _};

use ambit_model::printable::{is_printable, printable, printable_json};
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Room for the fields of most lines: a request has thirty.
const LINE_BYTES: usize = 768;

/// How lines are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[value(alias = "text")]
    Plain,
    /// One JSON object a line.
    Json,
}

/// Formats events as Istio's components do.
#[derive(Clone, Copy, Debug)]
pub struct LineFormat(pub LogFormat);

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields {
            format: self.0,
            message: String::new(),
            rest: String::with_capacity(LINE_BYTES),
            whole_line: None,
        };
        event.record(&mut fields);
        let Fields { message, rest, whole_line, .. } = fields;
        if let Some(line) = whole_line {
            return writeln!(writer, "{line}");
        }
        let mut time = String::with_capacity(32);
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let scope = event.metadata().target().trim_start_matches("ambit_");
        match self.0 {
            LogFormat::Plain => {
                let message = printable(&message);
                writeln!(writer, "{time}\t{level}\t{scope}\t{message}\t{}", rest.trim_end())
            }
            LogFormat::Json => {
                let message = json(&message);
                let scope = json(scope);
                writeln!(
                    writer,
                    "{{\"level\":\"{level}\",\"time\":\"{time}\",\"scope\":{scope},\
                     \"message\":{message}{rest}}}"
                )
            }
        }
    }
}

/// A text as JSON. Characters that must not reach a terminal are written as their number.
fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).expect("a text is valid JSON");
    printable_json(&quoted).into_owned()
}

/// Whether a value could be taken for something else without quotes around it: for two values, for
/// another field, or for a command to the terminal.
fn needs_quotes(value: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_graphic() && !matches!(it, b'"' | b'=');
    if value.bytes().all(is_plain) {
        return false;
    }
    value.chars().any(|it| it.is_whitespace() || matches!(it, '"' | '=') || !is_printable(it))
}

/// The value between quotes, with every character escaped that ends it or is not to be shown.
fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", printable(&escaped))
}

struct Fields {
    format: LogFormat,
    message: String,
    rest: String,
    whole_line: Option<String>,
}

impl Fields {
    /// Adds a text.
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.add_to_message(value);
            return;
        }
        self.begin(field);
        match self.format {
            LogFormat::Plain if !needs_quotes(value) => self.rest.push_str(value),
            LogFormat::Plain => self.rest.push_str(&quoted(value)),
            LogFormat::Json => self.rest.push_str(&json(value)),
        }
        self.end();
    }

    /// Adds what is JSON as it is, and has nothing to quote.
    fn add_bare(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == "message" {
            self.add_to_message(&value.to_string());
            return;
        }
        self.begin(field);
        self.rest.write_fmt(value).expect("a string takes everything");
        self.end();
    }

    fn begin(&mut self, field: &Field) {
        match self.format {
            LogFormat::Plain => {
                self.rest.push_str(field.name());
                self.rest.push('=');
            }
            LogFormat::Json => {
                self.rest.push_str(",\"");
                self.rest.push_str(field.name());
                self.rest.push_str("\":");
            }
        }
    }

    fn end(&mut self) {
        if self.format == LogFormat::Plain {
            self.rest.push(' ');
        }
    }

    /// An event may have a field of that name beside its text.
    fn add_to_message(&mut self, value: &str) {
        if !self.message.is_empty() {
            self.message.push_str(": ");
        }
        self.message.push_str(value);
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "whole_line" => self.whole_line = Some(value.to_owned()),
            _ => self.add(field, value),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add_bare(field, format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add_bare(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add_bare(field, format_args!("{value}"));
    }

    /// Written in its place, and written again where it turns out to need quotes.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" || self.format == LogFormat::Json {
            self.add(field, &format!("{value:?}"));
            return;
        }
        self.begin(field);
        let start = self.rest.len();
        write!(self.rest, "{value:?}").expect("a string takes everything");
        if needs_quotes(&self.rest[start..]) {
            let value = quoted(&self.rest[start..]);
            self.rest.truncate(start);
            self.rest.push_str(&value);
        }
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("unbroken").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat) -> String {
        logged_with(format, || {
            tracing::event!(
                target: "access",
                tracing::Level::INFO,
                src.addr = %"10.0.0.1:5",
                dst.workload = None::<&str>,
                bytes_sent = 5_u64,
                error = "no \"way\"",
                "connection {}", "complete"
            );
        })
    }

    fn logged_with(format: LogFormat, event: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(LineFormat(format))
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, event);
        let bytes = captured.0.lock().expect("unbroken").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn plain_lines_have_istios_columns() {
        let line = logged(LogFormat::Plain);
        let columns: Vec<_> = line.trim_end().split('\t').collect();
        assert_eq!(columns[1..4], ["info", "access", "connection complete"]);
        assert_eq!(columns[4], "src.addr=10.0.0.1:5 bytes_sent=5 error=\"no \\\"way\\\"\"");
    }

    #[test]
    fn what_a_peer_says_commands_no_terminal_and_poses_as_no_field() {
        for format in [LogFormat::Plain, LogFormat::Json] {
            let line = logged_with(format, || {
                tracing::event!(
                    target: "access",
                    tracing::Level::INFO,
                    src.told = "a\u{1b}[2J\u{7}\u{9b}\u{202e}\u{7f}\r\nx",
                    dst.told_service = "b src.identity=\"spiffe://t\"",
                    error = "c=d\\",
                    "{}",
                    "e\u{1b}\tf\n"
                );
            });
            let line = line.strip_suffix('\n').expect("one line");
            let separators = if format == LogFormat::Plain { 4 } else { 0 };
            assert_eq!(line.matches('\t').count(), separators, "{line:?}");
            let shown = line.chars().filter(|it| *it != '\t');
            assert!(shown.clone().all(is_printable), "{line:?}");
            if format == LogFormat::Plain {
                let service = r#"dst.told_service="b src.identity=\"spiffe://t\"""#;
                assert!(line.contains(service), "{line}");
                assert!(
                    line.contains(r#"src.told="a\u{1b}[2J\u{7}\u{9b}\u{202e}\u{7f}"#),
                    "{line}"
                );
                assert!(line.ends_with(r#"error="c=d\\""#), "{line}");
            } else {
                let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
                assert_eq!(value["src.told"], "a\u{1b}[2J\u{7}\u{9b}\u{202e}\u{7f}\r\nx");
            }
        }
    }

    #[test]
    fn a_field_called_message_does_not_run_into_the_text() {
        for format in [LogFormat::Plain, LogFormat::Json] {
            let line = logged_with(format, || tracing::warn!(message = "no token", "refused"));
            assert!(line.contains("refused: no token") || line.contains("no token: refused"));
        }
    }

    #[test]
    fn a_line_in_another_form_is_written_as_it_is() {
        for format in [LogFormat::Plain, LogFormat::Json] {
            let line = logged_with(format, || tracing::info!(whole_line = "[now] \"GET /\" 200"));
            assert_eq!(line, "[now] \"GET /\" 200\n");
        }
    }

    #[test]
    fn json_lines_are_one_object() {
        let line = logged(LogFormat::Json);
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["level"], "info");
        assert_eq!(value["scope"], "access");
        assert_eq!(value["message"], "connection complete");
        assert_eq!(value["src.addr"], "10.0.0.1:5");
        assert_eq!(value["bytes_sent"], 5);
        assert_eq!(value["error"], "no \"way\"");
    }
}
