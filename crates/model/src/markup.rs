//! Escapes foreign text for SVG and HTML.

/// Foreign text within SVG or HTML, also within an attribute.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' | '\t' => escaped.push(it),
            // XML knows no way of writing them.
            it if it.is_control() || matches!(it, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}');
            }
            it => escaped.push(it),
        }
    }
    escaped
}
