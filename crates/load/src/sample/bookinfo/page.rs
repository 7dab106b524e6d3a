//! The page of bookinfo: details and reviews as HTML.
//!
//! A pure function of the services' answers. All their text is escaped.

use std::fmt::Write;

use ambit_model::markup::escaped;
use serde::Deserialize;

/// The page with its places, each marked as `@name@`.
const PAGE: &str = include_str!("page.html");
const TITLE: &str = "The Comedy of Errors";
const DESCRIPTION: &str = "Two pairs of twins, parted by a shipwreck, come to the same town on \
    the same day, and nobody can tell them apart. It is the shortest of William Shakespeare's \
    plays and among his earliest: most of its humour is mistaken identity, wordplay and blows \
    that meet the wrong person.";
const STARS_MAX: u8 = 5;
/// A star of the current colour.
const STAR: &str = concat!(
    r#"<svg viewBox="0 0 20 20" fill="currentColor" aria-hidden="true">"#,
    r#"<path d="M10 1.6l2.6 5.3 5.8.8-4.2 4.1 1 5.8-5.2-2.7-5.2 2.7 1-5.8L1.6 7.7l5.8-.8z"/>"#,
    "</svg>",
);
/// A star that was not given.
const NO_STAR: &str = concat!(
    r#"<svg viewBox="0 0 20 20" fill="none" stroke="currentColor" aria-hidden="true">"#,
    r#"<path d="M10 1.6l2.6 5.3 5.8.8-4.2 4.1 1 5.8-5.2-2.7-5.2 2.7 1-5.8L1.6 7.7l5.8-.8z"/>"#,
    "</svg>",
);

/// What details answers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Details {
    author: String,
    year: u32,
    #[serde(rename = "type")]
    kind: String,
    pages: u32,
    publisher: String,
    language: String,
    #[serde(rename = "ISBN-10")]
    isbn_10: String,
    #[serde(rename = "ISBN-13")]
    isbn_13: String,
}

/// What reviews answers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reviews {
    podname: String,
    reviews: Vec<Review>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Review {
    reviewer: String,
    text: String,
    rating: Option<Rating>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Rating {
    Stars { stars: u8, color: String },
    Missing { error: String },
}

impl Reviews {
    /// Every rating that was wanted is there.
    pub(super) fn is_complete(&self) -> bool {
        let missing = |review: &Review| matches!(review.rating, Some(Rating::Missing { .. }));
        !self.reviews.iter().any(missing)
    }
}

/// The page; a notice replaces a missing part.
pub(super) fn page(details: Option<&Details>, reviews: Option<&Reviews>) -> String {
    let mut page = String::with_capacity(PAGE.len() + 4096);
    for (index, part) in PAGE.split('@').enumerate() {
        match part {
            _ if index % 2 == 0 => page += part,
            "title" => page += TITLE,
            "description" => page += DESCRIPTION,
            "details" => write_details(&mut page, details),
            _ => write_reviews(&mut page, reviews),
        }
    }
    page
}

fn write_details(page: &mut String, details: Option<&Details>) {
    let Some(details) = details else {
        return missing(page, "product details");
    };
    *page += "<div class=\"wide\"><table>\n<tr>";
    for title in ["Author", "Year", "Type", "Pages", "Publisher", "Language", "ISBN-10", "ISBN-13"]
    {
        *page += &format!("<th scope=\"col\">{title}</th>");
    }
    *page += "</tr>\n<tr>";
    for value in [
        &details.author,
        &details.year.to_string(),
        &details.kind,
        &details.pages.to_string(),
        &details.publisher,
        &details.language,
        &details.isbn_10,
        &details.isbn_13,
    ] {
        *page += "<td>";
        *page += &escaped(value);
        *page += "</td>";
    }
    *page += "</tr>\n</table></div>";
}

fn write_reviews(page: &mut String, reviews: Option<&Reviews>) {
    let Some(reviews) = reviews else {
        return missing(page, "product reviews");
    };
    *page += "<div class=\"reviews\">\n";
    for review in &reviews.reviews {
        *page += "<article>\n";
        write_rating(page, review.rating.as_ref());
        *page += "<blockquote>";
        *page += &escaped(&review.text);
        *page += "</blockquote>\n<div class=\"who\">";
        *page += &escaped(&review.reviewer);
        *page += "</div>\n<div class=\"by\">Reviews served by: ";
        *page += &escaped(&reviews.podname);
        *page += "</div>\n</article>\n";
    }
    *page += "</div>";
}

fn write_rating(page: &mut String, rating: Option<&Rating>) {
    match rating {
        None => {}
        Some(Rating::Missing { error }) => {
            *page += "<div class=\"bad\">";
            *page += &escaped(error);
            *page += "</div>\n";
        }
        Some(Rating::Stars { stars, color }) => {
            let stars = *stars.min(&STARS_MAX);
            *page += "<div class=\"stars\" style=\"color: ";
            *page += &escaped(color);
            write!(page, "\" title=\"{stars} of {STARS_MAX}\">").expect("a String takes all");
            (0..STARS_MAX).for_each(|number| *page += if number < stars { STAR } else { NO_STAR });
            *page += "</div>\n";
        }
    }
}

fn missing(page: &mut String, what: &str) {
    *page += "<h4>Error fetching ";
    *page += what;
    *page += "!</h4>\n<p class=\"bad\">Sorry, ";
    *page += what;
    *page += " are currently unavailable for this book.</p>";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reviews(rating: &str) -> Reviews {
        let text = format!(
            r#"{{"id":"0","podname":"reviews-1","clustername":"null",
                "reviews":[{{"reviewer":"R<1>","text":"a & b"{rating}}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_the_services_said_is_on_the_page() {
        let details: Details = serde_json::from_str(
            r#"{"id":0,"author":"W. S.","year":1595,"type":"paperback","pages":200,
                "publisher":"P","language":"English","ISBN-10":"12","ISBN-13":"34"}"#,
        )
        .unwrap();
        let reviews = reviews(r#","rating":{"stars":4,"color":"red"}"#);
        assert!(reviews.is_complete());
        let page = page(Some(&details), Some(&reviews));
        for part in [
            "<title>The Comedy of Errors - Bookinfo</title>",
            "<td>W. S.</td><td>1595</td><td>paperback</td><td>200</td><td>P</td>",
            "<blockquote>a &amp; b</blockquote>",
            "R&lt;1&gt;",
            "Reviews served by: reviews-1",
            "style=\"color: red\" title=\"4 of 5\"",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!((page.matches(STAR).count(), page.matches(NO_STAR).count()), (4, 1));
        assert!(!page.contains('@') && page.ends_with("</html>\n"), "{page}");
        assert!((3_000..8_000).contains(&page.len()), "{} bytes", page.len());
    }

    #[test]
    fn what_is_missing_is_said() {
        let page = page(None, Some(&reviews(r#","rating":{"error":"no ratings"}"#)));
        assert!(page.contains("Sorry, product details are currently unavailable"), "{page}");
        assert!(page.contains("<div class=\"bad\">no ratings</div>"), "{page}");
        assert!(!reviews(r#","rating":{"error":"no ratings"}"#).is_complete());
        assert!(reviews("").is_complete());
    }
}
