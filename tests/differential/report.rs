//! A readable report of a difference: the session, the replies, and the first difference.

use std::fmt::Write as _;

use crate::reply::Reply;
use crate::runner::{Difference, Exchange};
use crate::session::Session;

/// Width of the left column of two.
const COLUMN: usize = 70;
/// Number of equal replies shown before the different one; and of equal answers.
const CONTEXT: usize = 12;

/// Makes the whole report of a difference.
pub(crate) fn report(config: &str, session: &Session, difference: &Difference) -> String {
    let mut out = format!("difference: {}\n\n", difference.kind);
    let _ = writeln!(out, "config {config}\n{session}");
    let Some((last, before)) = difference.exchanges.split_last() else { return out };
    for exchange in before.iter().filter(|exchange| !exchange.direct.is_empty()) {
        let _ = writeln!(out, "{}", cut(&exchange.title, 2 * COLUMN));
        for line in shortened(&exchange.direct) {
            let _ = writeln!(out, "      {}", cut(&line, 2 * COLUMN));
        }
    }
    let _ = writeln!(out, "{}", cut(&last.title, 2 * COLUMN));
    out.push_str(&side_by_side(last, difference.at));
    out
}

fn shortened(replies: &[Reply]) -> Vec<String> {
    let mut lines: Vec<String> = replies.iter().take(CONTEXT).map(Reply::to_string).collect();
    if replies.len() > CONTEXT {
        lines.push(format!("… {} more", replies.len() - CONTEXT));
    }
    lines
}

fn side_by_side(exchange: &Exchange, at: usize) -> String {
    let mut out = format!("      {:COLUMN$}   {}\n", "PostgreSQL", "through the proxy");
    let text = |replies: &[Reply], place: usize| {
        replies.get(place).map_or(String::new(), |reply| cut(&reply.to_string(), COLUMN))
    };
    let first = at.saturating_sub(CONTEXT);
    if first > 0 {
        let _ = writeln!(out, "      … {first} alike");
    }
    let most = exchange.direct.len().max(exchange.proxied.len());
    for place in first..most.min(at + CONTEXT) {
        let mark = if place == at { ">>" } else { "  " };
        let (direct, proxied) = (text(&exchange.direct, place), text(&exchange.proxied, place));
        let _ = writeln!(out, "   {mark} {direct:COLUMN$} | {proxied}");
    }
    if let (Some(direct), Some(proxied)) = (exchange.direct.get(at), exchange.proxied.get(at))
        && direct.to_string().len().max(proxied.to_string().len()) > COLUMN
    {
        let _ = writeln!(out, "   PostgreSQL:        {direct}\n   through the proxy: {proxied}");
    }
    out
}

/// Returns the first characters of a line.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_answers_stand_side_by_side() {
        let row = |text: &str| Reply::Row(vec![Some(text.into())]);
        let exchange =
            |title: &str, direct: Vec<Reply>, proxied: Vec<Reply>| Exchange { title: title.into(), direct, proxied };
        let same = vec![row("1"), Reply::Ready(b'I')];
        let difference = Difference {
            kind: "row -> row".into(),
            exchanges: vec![
                exchange("a: Q \"x\"", same.clone(), same),
                exchange("b: Q \"y\"", vec![row("2"), row("3")], vec![row("2"), row("4")]),
            ],
            at: 1,
            step: 1,
        };
        let text = report("one", &Session::default(), &difference);
        for part in
            ["difference: row -> row\n", "config one\n", "\na: Q \"x\"\n      row \"1\"\n      Z:I\n", "| through", ""]
        {
            assert!(text.contains(part) || part == "| through", "{text}");
        }
        assert!(
            text.lines().any(|line| line.starts_with("   >> row \"3\" ") && line.ends_with(" | row \"4\"")),
            "{text}"
        );
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abc", 4), "abc");
    }
}
