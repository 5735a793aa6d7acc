//! A transaction whose server is gone: as far as the client can see it is a failed transaction like any other, and ends with
//! ROLLBACK. Nothing of it can have been committed: a loss with COMMIT in flight is reported otherwise (see `lost`).

use sql::Control;
use wire::payload::{self, Named};
use wire::{Frame, HEADER, Sqlstate, message};

use super::client::{Aborted, Prepared, Step};
use super::login::error;
use super::{CLASSIFY_MAX, Core};

/// What a statement does to the failed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It ends; the statement succeeds as ROLLBACK.
    Ends,
    /// It ends; but the client believes that it commits and has not been told.
    EndsWithError,
    /// It goes on failed; the client hears of it for the first time.
    First,
    /// It goes on failed.
    Again,
}

fn turn(aborted: Aborted, control: Control) -> Turn {
    match (control, aborted) {
        // COMMIT of a failed transaction is answered ROLLBACK without an error, which many applications don't look at.
        (Control::Commit, Aborted::Untold) => Turn::EndsWithError,
        (Control::Commit | Control::Rollback, _) => Turn::Ends,
        (_, Aborted::Untold) => Turn::First,
        _ => Turn::Again,
    }
}

/// What the client is told of the loss.
pub(super) const LOST: &str =
    "the transaction was rolled back: the connection to its server was lost; it can be run again";

impl Core {
    pub(super) fn aborted_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        let understood = matches!(frame.tag, b'Q' | b'P' | b'B' | b'D' | b'C' | b'E' | b'S' | b'H' | b'F');
        if !understood {
            self.violation(c, &format!("unexpected message {:?}", char::from(frame.tag)));
            return Step::Gone;
        }
        let data = match bytes.get(HEADER..frame.total()) {
            Some(data) => data,
            None if frame.payload > CLASSIFY_MAX => {
                // Whatever it is, it is not a short ROLLBACK.
                self.refuse_aborted(c, Control::None, matches!(frame.tag, b'Q' | b'F'));
                return self.discard(c, frame);
            }
            None => return Step::More,
        };
        match frame.tag {
            b'Q' => {
                let text = payload::cstr(data).map_or(&b""[..], |(text, _)| text);
                let control = self.classify(c, text).control;
                self.refuse_aborted(c, control, true);
            }
            b'P' => {
                let Some((name, text, types)) = payload::parse(data) else {
                    self.violation(c, "invalid Parse message");
                    return Step::Gone;
                };
                let class = self.classify(c, text);
                if matches!(class.control, Control::Commit | Control::Rollback) {
                    let statement = self.statement_as(c, text, types, class);
                    let client = &mut self.clients[c];
                    if name.is_empty() {
                        client.unnamed = Some(statement);
                    } else {
                        let prepared = client.prepared.get_or_insert_with(Box::<Prepared>::default);
                        prepared.names.insert(name.into(), statement);
                    }
                    self.tell(c, |out| message::empty(out, b'1'));
                } else {
                    self.refuse_aborted(c, Control::None, false);
                }
            }
            b'B' => {
                let statement = payload::bind(data).and_then(|(_, name, _)| self.statement_of(c, name));
                let control = statement.map_or(Control::None, |statement| statement.class.control);
                if turn(self.clients[c].aborted, control) == Turn::Ends {
                    self.clients[c].ending = true;
                    self.tell(c, |out| message::empty(out, b'2'));
                } else {
                    self.refuse_aborted(c, control, false);
                }
            }
            b'D' => {
                // What ends the transaction takes and returns nothing.
                let (of_statement, known) = match payload::named(data) {
                    Some(Named::Portal(_)) => (false, self.clients[c].ending),
                    Some(Named::Statement(name)) => {
                        let control = self.statement_of(c, name).map(|statement| statement.class.control);
                        (true, matches!(control, Some(Control::Commit | Control::Rollback)))
                    }
                    None => (false, false),
                };
                if known {
                    self.tell(c, |out| {
                        if of_statement {
                            message::message(out, b't', |out| out.extend([0, 0]));
                        }
                        message::empty(out, b'n');
                    });
                } else {
                    self.refuse_aborted(c, Control::None, false);
                }
            }
            b'C' => {
                if let Some(Named::Statement(name)) = payload::named(data) {
                    self.forget_statement(c, name);
                }
                self.tell(c, |out| message::empty(out, b'3'));
            }
            // Any other portal went with the transaction.
            b'E' if std::mem::take(&mut self.clients[c].ending) => {
                self.clients[c].aborted = Aborted::No;
                self.tell(c, |out| message::complete(out, "ROLLBACK"));
            }
            b'E' => self.refuse_aborted(c, Control::None, false),
            b'F' => self.refuse_aborted(c, Control::None, true),
            b'S' => {
                self.clients[c].ending = false;
                self.ready(c);
            }
            _ => {}
        }
        Step::Used(frame.total())
    }

    /// Answers a statement, and with `ends_unit` the unit, in a failed transaction.
    fn refuse_aborted(&mut self, c: usize, control: Control, ends_unit: bool) {
        let turn = turn(self.clients[c].aborted, control);
        let (code, text) = match turn {
            Turn::Ends => (None, ""),
            Turn::EndsWithError | Turn::First => (Some(Sqlstate::SERIALIZATION_FAILURE), LOST),
            Turn::Again => (
                Some(Sqlstate::IN_FAILED_TRANSACTION),
                "current transaction is aborted, commands ignored until end of transaction block",
            ),
        };
        self.clients[c].aborted = match turn {
            Turn::Ends | Turn::EndsWithError => Aborted::No,
            Turn::First | Turn::Again => Aborted::Told,
        };
        self.tell(c, |out| match code {
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
