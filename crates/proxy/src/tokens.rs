//! Lines and words of PostgreSQL's access files (`pg_hba.conf`, `pg_ident.conf`): fields are separated by white space, the words of a list by commas,
//! a word may be in quotation marks, `#` begins a comment, and a backslash at the end of a line joins the line with the next one.

/// Maximum length of a file's text, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// Maximum number of reported errors.
pub(crate) const MAX_ERRORS: usize = 20;

/// Error in a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct Error {
    /// Number of the line, from 1.
    pub line: usize,
    /// The found and the expected text.
    pub message: String,
}

/// A word of a line. A quoted word is never a keyword.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) quoted: bool,
}

/// Parses the entries of a file, at most `most`. `parse` parses one line, including its continuation lines; it returns `None` for an empty line.
///
/// # Errors
/// All invalid lines, up to [`MAX_ERRORS`].
pub(crate) fn parse_lines<T>(
    text: &str,
    most: usize,
    mut parse: impl FnMut(&str) -> Result<Option<T>, String>,
) -> Result<Vec<T>, Vec<Error>> {
    if text.len() > MAX_TEXT {
        let message = format!("the file has {} bytes, expected at most {MAX_TEXT}", text.len());
        return Err(vec![Error { line: 1, message }]);
    }
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    let mut lines = text.lines().enumerate();
    while let Some((at, first)) = lines.next() {
        let mut line = first.to_owned();
        while line.ends_with('\\') {
            line.pop();
            match lines.next() {
                Some((_, next)) => line.push_str(next),
                None => break,
            }
        }
        match parse(&line) {
            Ok(Some(_)) if entries.len() >= most => {
                errors.push(Error {
                    line: at + 1,
                    message: format!("found more than {most} entries, expected at most as many"),
                });
                break;
            }
            Ok(entry) => entries.extend(entry),
            Err(message) => errors.push(Error { line: at + 1, message }),
        }
        if errors.len() >= MAX_ERRORS {
            break;
        }
    }
    if errors.is_empty() { Ok(entries) } else { Err(errors) }
}

pub(crate) fn single<'w>(field: &'w [Word], what: &str) -> Result<&'w Word, String> {
    match field {
        [word] => Ok(word),
        _ => {
            let all: Vec<&str> = field.iter().map(|word| word.text.as_str()).collect();
            Err(format!("found the list {:?}, expected {what}", all.join(",")))
        }
    }
}

/// Splits a line into fields, each a list of words.
pub(crate) fn split(line: &str) -> Result<Vec<Vec<Word>>, String> {
    let mut fields: Vec<Vec<Word>> = Vec::new();
    let mut rest = line.chars().peekable();
    // A comma, with white space on either side, continues the field.
    let mut joined = false;
    loop {
        while rest.next_if(|c| c.is_whitespace() || (*c == ',' && !fields.is_empty())).is_some_and(|c| {
            joined |= c == ',';
            true
        }) {}
        let Some(&next) = rest.peek() else { break };
        if next == '#' {
            break;
        }
        let mut word = Word { text: String::new(), quoted: false };
        let mut inside = false;
        while let Some(c) = rest.next_if(|c| inside || !(c.is_whitespace() || matches!(c, ',' | '#'))) {
            if c == '\0' {
                return Err("found a NUL, expected text".into());
            }
            if c != '"' {
                word.text.push(c);
            } else if inside && rest.next_if_eq(&'"').is_some() {
                word.text.push('"');
            } else {
                inside = !inside;
                word.quoted = true;
            }
        }
        if inside {
            return Err("found a quotation mark without its end".into());
        }
        if word.text.is_empty() && !word.quoted {
            return Err("found a comma, expected a word before it".into());
        }
        match fields.last_mut() {
            Some(field) if joined => field.push(word),
            _ => fields.push(vec![word]),
        }
        joined = false;
    }
    Ok(fields)
}
