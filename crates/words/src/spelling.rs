//! How near two words are, to say which one a user may have meant.

/// The one of `known` that `name` was probably meant to be: at most one letter is wrong, and one
/// more for every three.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let slips_max = 1 + name.len() / 3;
    let near = known.filter(|it| it.len().abs_diff(name.len()) <= slips_max);
    let near = near.map(|it| (distance(it, name), it)).min()?;
    (near.0 <= slips_max).then(|| near.1.to_owned())
}

/// How many letters must be put in, taken out or changed (Levenshtein), whatever their case.
pub fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (one, other) = (letters(one), letters(other));
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, other) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_if_it_is_near() {
        let known = ["app/web", "app/website", "shop/web", "db"];
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(nearest(name, known.into_iter()).as_deref(), expected, "{name}");
        };
        check("app/wbe", Some("app/web"));
        check("app/websit", Some("app/website"));
        check("sohp/web", Some("shop/web"));
        check("bd", None);
        check("dbs", Some("db"));
        check("app/nosuch", None);
    }
}
