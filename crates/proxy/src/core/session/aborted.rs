//! A transaction whose server connection is gone. The client sees a failed transaction, which ends with ROLLBACK.
//! Nothing of the transaction can have been committed: a loss with COMMIT in flight is reported otherwise (see `lost`).

use sql::Control;
use wire::frontend::Message;
use wire::payload::Named;
use wire::{Frame, Sqlstate, message};

use super::client::{Aborted, Step};
use super::login::error;
use crate::core::{CLASSIFY_MAX, Core};

/// Effect of a statement in the failed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The transaction ends; the statement succeeds with the tag ROLLBACK.
    Ends,
    /// The transaction ends, but with an error: the client believes that it commits, and has not received the error for the loss.
    EndsWithError,
    /// The transaction stays failed; the client gets the error for the loss for the first time.
    First,
    /// The transaction stays failed; the client has received that error before.
    Again,
}

fn turn(aborted: Aborted, control: Control) -> Turn {
    match (control, aborted) {
        // PostgreSQL answers COMMIT of a failed transaction with the tag ROLLBACK and no error. Many applications do
        // not look at the tag.
        (Control::Commit, Aborted::Untold) => Turn::EndsWithError,
        (Control::Commit | Control::Rollback, _) => Turn::Ends,
        (_, Aborted::Untold) => Turn::First,
        _ => Turn::Again,
    }
}

/// The error that reports the loss to a client.
pub(in crate::core) const LOST: &str =
    "the transaction was rolled back: the connection to its server was lost; it can be run again";

/// PostgreSQL's words for any statement but the last in a failed transaction.
pub(in crate::core) const IN_FAILED_TRANSACTION: &str =
    "current transaction is aborted, commands ignored until end of transaction block";

impl Core {
    pub(super) fn aborted_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        let there = bytes.len() >= frame.total();
        if !there && frame.payload > CLASSIFY_MAX && matches!(frame.tag, b'Q' | b'P' | b'B' | b'F') {
            // Too long for a ROLLBACK: any other message.
            self.refuse_aborted(c, Control::None, matches!(frame.tag, b'Q' | b'F'));
            return self.discard(c, frame);
        }
        let message = match Message::read(frame, bytes) {
            Ok(Some(message)) if there => message,
            Ok(_) => return Step::More,
            Err(invalid) => {
                self.violation(c, &invalid.to_string());
                return Step::Gone;
            }
        };
        match message {
            Message::Query { text } => {
                let control = self.classify(c, text).control;
                self.clients[c].names.query();
                self.refuse_aborted(c, control, true);
            }
            Message::Parse { name, text, types } => return self.aborted_parse(c, (name, text, types), frame),
            Message::Bind { statement: name, .. } if self.is_missing(c, name) => self.refuse_missing(c, name),
            Message::Bind { statement: name, .. } => {
                let control =
                    self.clients[c].names.get(name).map_or(Control::None, |statement| statement.class().control);
                if turn(self.clients[c].aborted, control) == Turn::Ends {
                    self.clients[c].ending = true;
                    self.write_client(c, |out| message::empty(out, b'2'));
                } else {
                    self.refuse_aborted(c, control, false);
                }
            }
            Message::Describe(Named::Statement(name)) if self.is_missing(c, name) => self.refuse_missing(c, name),
            Message::Describe(Named::Portal(portal)) if self.has_no_portal(c) => self.refuse_portal(c, portal),
            Message::Describe(named) => {
                // COMMIT and ROLLBACK take no parameters and return no rows.
                let (of_statement, known) = match named {
                    Named::Portal(_) => (false, self.clients[c].ending),
                    Named::Statement(name) => {
                        let control = self.clients[c].names.get(name).map(|statement| statement.class().control);
                        (true, matches!(control, Some(Control::Commit | Control::Rollback)))
                    }
                };
                if known {
                    self.write_client(c, |out| {
                        if of_statement {
                            message::message(out, b't', |out| out.extend([0, 0]));
                        }
                        message::empty(out, b'n');
                    });
                } else {
                    self.refuse_aborted(c, Control::None, false);
                }
            }
            Message::Close(named) => {
                if let Named::Statement(name) = named {
                    self.clients[c].names.close(name);
                }
                self.write_client(c, |out| message::empty(out, b'3'));
            }
            // The portal of a ROLLBACK (`ending`). All other portals went with the transaction.
            Message::Execute { .. } if std::mem::take(&mut self.clients[c].ending) => {
                self.clients[c].aborted = Aborted::No;
                self.write_client(c, |out| message::complete(out, "ROLLBACK"));
            }
            Message::Execute { portal, .. } if self.has_no_portal(c) => self.refuse_portal(c, portal),
            Message::Execute { .. } => self.refuse_aborted(c, Control::None, false),
            Message::FunctionCall => self.refuse_aborted(c, Control::None, true),
            Message::Sync => {
                self.clients[c].ending = false;
                self.ready(c);
            }
            Message::Flush => {}
            // COPY data outside of a COPY is ignored by servers, too. `message` handles Terminate first.
            Message::CopyData | Message::CopyDone | Message::CopyFail | Message::Terminate => {}
        }
        Step::Used(frame.total())
    }

    /// True if the statement does not exist, which PostgreSQL checks before it checks for a failed transaction.
    fn is_missing(&self, c: usize, name: &[u8]) -> bool {
        let client = &self.clients[c];
        client.aborted == Aborted::Told && client.names.get(name).is_none()
    }

    fn refuse_missing(&mut self, c: usize, name: &[u8]) {
        let text = match name {
            b"" => "unnamed prepared statement does not exist".to_owned(),
            name => format!("prepared statement \"{}\" does not exist", String::from_utf8_lossy(name)),
        };
        self.refuse_with(c, Sqlstate::INVALID_STATEMENT_NAME, &text);
    }

    /// True if no portal exists: all went with the transaction, except that of a ROLLBACK which has been bound.
    fn has_no_portal(&self, c: usize) -> bool {
        let client = &self.clients[c];
        client.aborted == Aborted::Told && !client.ending
    }

    fn refuse_portal(&mut self, c: usize, portal: &[u8]) {
        let text = format!("portal \"{}\" does not exist", String::from_utf8_lossy(portal));
        self.refuse_with(c, Sqlstate::INVALID_CURSOR_NAME, &text);
    }

    /// Sends an error; the rest of the unit is skipped.
    fn refuse_with(&mut self, c: usize, code: Sqlstate, text: &str) {
        self.write_client(c, |out| error(out, code, text));
        (self.clients[c].ending, self.clients[c].skipping) = (false, true);
    }

    fn aborted_parse(&mut self, c: usize, (name, text, types): (&[u8], &[u8], &[u8]), frame: Frame) -> Step {
        let class = self.classify(c, text);
        if !matches!(class.control, Control::Commit | Control::Rollback) {
            if name.is_empty() {
                self.clients[c].names.unnamed_failed();
            }
            self.refuse_aborted(c, Control::None, false);
            return Step::Used(frame.total());
        }
        if !name.is_empty() && self.clients[c].names.get(name).is_some() {
            let text = format!("prepared statement {:?} already exists", String::from_utf8_lossy(name));
            self.clients[c].aborted = Aborted::Told;
            self.refuse_with(c, Sqlstate::DUPLICATE_STATEMENT, &text);
            return Step::Used(frame.total());
        }
        let statement = self.statement_for(c, text, types, class);
        if let Err(full) = self.clients[c].names.parse(name, statement, self.settings.prepared_bytes) {
            self.fatal(c, Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, &full.to_string());
            return Step::Gone;
        }
        self.write_client(c, |out| message::empty(out, b'1'));
        Step::Used(frame.total())
    }

    /// Answers a statement in the failed transaction and, with `ends_unit`, ends the unit.
    fn refuse_aborted(&mut self, c: usize, control: Control, ends_unit: bool) {
        let turn = turn(self.clients[c].aborted, control);
        let (code, text) = match turn {
            Turn::Ends => (None, ""),
            Turn::EndsWithError | Turn::First => (Some(Sqlstate::SERIALIZATION_FAILURE), LOST),
            Turn::Again => (Some(Sqlstate::IN_FAILED_TRANSACTION), IN_FAILED_TRANSACTION),
        };
        self.clients[c].aborted = match turn {
            Turn::Ends | Turn::EndsWithError => Aborted::No,
            Turn::First | Turn::Again => Aborted::Told,
        };
        self.write_client(c, |out| match code {
            Some(code) => error(out, code, text),
            None => message::complete(out, "ROLLBACK"),
        });
        if ends_unit {
            self.ready(c);
        } else if code.is_some() {
            self.clients[c].ending = false;
            self.clients[c].skipping = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns() {
        let begin = Control::Begin { read_only: false };
        let cases = [
            (Aborted::Untold, Control::Commit, Turn::EndsWithError),
            (Aborted::Untold, Control::Rollback, Turn::Ends),
            (Aborted::Untold, Control::None, Turn::First),
            (Aborted::Untold, begin, Turn::First),
            (Aborted::Told, Control::Commit, Turn::Ends),
            (Aborted::Told, Control::Rollback, Turn::Ends),
            (Aborted::Told, Control::None, Turn::Again),
        ];
        for (aborted, control, expected) in cases {
            assert_eq!(turn(aborted, control), expected, "{aborted:?} {control:?}");
        }
    }
}
