//! The state sent to viewers: versioned sections of JSON, samples, events. Encoded once, read by all.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;

use serde::Serialize;

use crate::events::Event;

/// Number of samples kept: five minutes, one a second.
pub(crate) const SAMPLES: usize = 300;

/// Sections, in the order in which they are written.
pub(crate) const SECTIONS: [&str; 7] = ["hello", "clusters", "cluster", "proxy", "pools", "relay", "registry"];

/// The latest state. Immutable; each look makes a new one, which shares the unchanged parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board {
    /// Milliseconds since 1970.
    pub(crate) now: u64,
    sections: [Section; SECTIONS.len()],
    /// Samples by number, oldest first.
    samples: VecDeque<(u64, Arc<str>)>,
    /// Events by id, oldest first.
    events: VecDeque<(u64, Arc<str>)>,
}

#[derive(Debug, Clone, Default)]
struct Section {
    /// Version of the content; 0: none yet.
    version: u64,
    text: Arc<str>,
}

/// Position of a viewer: the versions, sample and event that it has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    versions: [u64; SECTIONS.len()],
    sample: u64,
    event: u64,
}

impl Board {
    /// Sets a section; unchanged content keeps its version.
    pub(crate) fn put<T: Serialize>(&mut self, name: &str, value: &T) {
        let Some(index) = SECTIONS.iter().position(|section| *section == name) else { return };
        // Plain values with text keys: encoding cannot fail.
        let Ok(text) = serde_json::to_string(value) else { return };
        let section = &mut self.sections[index];
        if *section.text != *text {
            *section = Section { version: section.version + 1, text: text.into() };
        }
    }

    /// Adds a sample.
    pub(crate) fn sample<T: Serialize>(&mut self, value: &T) {
        let Ok(text) = serde_json::to_string(value) else { return };
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        let number = self.samples.back().map_or(0, |(number, _)| *number) + 1;
        self.samples.push_back((number, text.into()));
    }

    /// Adds the events that are new.
    pub(crate) fn events<'a>(&mut self, events: impl Iterator<Item = &'a Event>) {
        let last = self.events.back().map_or(0, |(id, _)| *id);
        for event in events.filter(|event| event.id > last) {
            let Ok(text) = serde_json::to_string(event) else { continue };
            if self.events.len() == crate::events::MOST {
                self.events.pop_front();
            }
            self.events.push_back((event.id, text.into()));
        }
    }

    /// Returns the changes since a viewer's cursor, as one JSON object without line ends, and advances the cursor.
    pub(crate) fn news(&self, cursor: &mut Cursor) -> String {
        let mut text = format!("{{\"now\":{}", self.now);
        for ((name, section), told) in SECTIONS.iter().zip(&self.sections).zip(&mut cursor.versions) {
            if section.version > *told {
                // Writing to a String cannot fail.
                let _ = write!(text, ",\"{name}\":{}", section.text);
                *told = section.version;
            }
        }
        for (name, list, told) in
            [("samples", &self.samples, &mut cursor.sample), ("events", &self.events, &mut cursor.event)]
        {
            let news: Vec<&str> = list.iter().filter(|(number, _)| number > told).map(|(_, text)| &**text).collect();
            if !news.is_empty() {
                let _ = write!(text, ",\"{name}\":[{}]", news.join(","));
                *told = list.back().map_or(0, |(number, _)| *number);
            }
        }
        text.push('}');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Events, Seen, Severity};

    #[test]
    fn a_viewer_is_told_once() {
        let mut board = Board { now: 7, ..Board::default() };
        let mut events = Events::default();
        board.put("cluster", &1);
        board.sample(&"a");
        events.push(Seen(Severity::Good, "n".into(), "x\ny".into()), 5);
        board.events(events.last.iter());
        let mut cursor = Cursor::default();
        let event = r#"{"id":1,"at":5,"severity":"good","subject":"n","text":"x\ny"}"#;
        assert_eq!(board.news(&mut cursor), format!(r#"{{"now":7,"cluster":1,"samples":["a"],"events":[{event}]}}"#));
        assert_eq!(board.news(&mut cursor), r#"{"now":7}"#);
        board.put("cluster", &1);
        board.put("relay", &"r");
        board.events(events.last.iter());
        assert_eq!(board.news(&mut cursor), r#"{"now":7,"relay":"r"}"#, "what is as it was is no news");
        // A viewer that was away for long gets the available samples, once.
        for number in 0..SAMPLES + 10 {
            board.sample(&number);
        }
        let news = board.news(&mut cursor);
        assert_eq!(news.matches(',').count(), SAMPLES, "{news}");
        assert_eq!(board.news(&mut cursor), r#"{"now":7}"#);
    }

    #[test]
    fn news_is_one_line_of_json() {
        let mut board = Board::default();
        board.put("hello", &"a\r\nb\u{2028}");
        let text = board.news(&mut Cursor::default());
        assert!(!text.contains(['\n', '\r']) && serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    }
}
