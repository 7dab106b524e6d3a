//! Fields below one another, as `kubectl describe` writes them: titles on the left, values in one
//! column for each block, what belongs together two spaces further in.

use serde_json::Value;

/// How much further in what belongs to a title is.
const INDENT: usize = 2;

/// Fields whose keys are no words of an API.
const NAMED_BY_OTHERS: [&str; 4] = ["labels", "annotations", "matchLabels", "nodeSelector"];

/// A text that grows.
#[derive(Debug, Default)]
pub(super) struct Outline {
    text: String,
    depth: usize,
    /// Fields whose column is not known yet.
    block: Vec<(String, String)>,
}

impl Outline {
    /// A field with a value in one line.
    pub(super) fn field(&mut self, title: &str, value: &Value) {
        self.text(title, &one_line(value));
    }

    /// The same of a text.
    pub(super) fn text(&mut self, title: &str, value: &str) {
        let value = if value.is_empty() { "<none>" } else { value };
        self.block.push((title.to_owned(), value.to_owned()));
    }

    /// A line that has no value of its own.
    pub(super) fn title(&mut self, title: &str) {
        self.flush();
        self.line(&format!("{title}:"));
    }

    /// What belongs to the last title.
    pub(super) fn nested(&mut self, write: impl FnOnce(&mut Self)) {
        self.flush();
        self.depth += 1;
        write(self);
        self.flush();
        self.depth -= 1;
    }

    /// Keys with values that others chose, each on a line: the first beside the title.
    pub(super) fn pairs(&mut self, title: &str, pairs: &Value, between: &str) {
        let pair = |(key, value): (&String, &Value)| format!("{key}{between}{}", one_line(value));
        let pairs = pairs.as_object().into_iter().flatten().map(pair).collect::<Vec<_>>();
        self.text(title, &pairs.join("\n"));
    }

    /// Names with values, below a title.
    pub(super) fn list(&mut self, title: &str, pairs: &[(String, String)]) {
        if pairs.is_empty() {
            return self.text(title, "");
        }
        self.title(title);
        self.nested(|inner| pairs.iter().for_each(|(name, value)| inner.text(name, value)));
    }

    /// A value with all that is in it.
    pub(super) fn tree(&mut self, title: &str, value: &Value) {
        match value {
            Value::Object(fields) if fields.is_empty() => {}
            Value::Object(fields) => {
                self.title(title);
                self.nested(|inner| inner.fields(fields));
            }
            Value::Array(elements) if elements.is_empty() => {}
            Value::Array(elements) => {
                self.title(title);
                self.nested(|inner| elements.iter().for_each(|it| inner.element(it)));
            }
            value => self.field(title, value),
        }
    }

    fn fields(&mut self, fields: &serde_json::Map<String, Value>) {
        for (key, value) in fields {
            match NAMED_BY_OTHERS.contains(&key.as_str()) {
                true => self.pairs(&label(key), value, "="),
                false => self.tree(&label(key), value),
            }
        }
    }

    fn element(&mut self, element: &Value) {
        match element {
            Value::Object(fields) => {
                self.fields(fields);
                self.flush();
            }
            element => {
                self.flush();
                self.line(&one_line(element));
            }
        }
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        self.flush();
        self.text
    }

    fn flush(&mut self) {
        let block = std::mem::take(&mut self.block);
        let width = block.iter().map(|(title, _)| title.chars().count()).max().unwrap_or(0) + 1;
        for (title, value) in block {
            for (place, line) in value.split('\n').enumerate() {
                let title = if place == 0 { format!("{title}:") } else { String::new() };
                self.line(&format!("{title:<width$}  {line}"));
            }
        }
    }

    fn line(&mut self, line: &str) {
        let line = format!("{:indent$}{line}", "", indent = self.depth * INDENT);
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

/// A value in one line; a text without quotes.
pub(super) fn one_line(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(elements) => elements.iter().map(one_line).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("{key}={}", one_line(value));
            let fields: Vec<String> = fields.iter().map(field).collect();
            if fields.is_empty() { "{}".to_owned() } else { fields.join(" ") }
        }
    }
}

/// The name of a field in words: `matchLabels` is `Match Labels`.
pub(super) fn label(field: &str) -> String {
    let mut words = String::new();
    let mut was_lower = false;
    for (place, c) in field.chars().enumerate() {
        if c.is_uppercase() && was_lower {
            words.push(' ');
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
        if place == 0 { words.extend(c.to_uppercase()) } else { words.push(c) }
    }
    words
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_are_named_in_words() {
        let check = |field, expected: &str| assert_eq!(super::label(field), expected);
        check("matchLabels", "Match Labels");
        check("clusterIPs", "Cluster IPs");
        check("uid", "Uid");
        check("observedGeneration", "Observed Generation");
        check("", "");
    }
}
