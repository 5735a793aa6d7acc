//! Lists over HTTP: the parameters and the page of a query, and the answer to a change of several objects.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::code;
use super::http::status;
use crate::api::{Reply, Request};

/// Maximum and default number of rows in an answer, as of Polaris' own server.
pub(super) const MOST: usize = 100;

/// Parameters of a query: its filters by name, and its page.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub(super) filters: BTreeMap<String, String>,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

impl Parameters {
    /// Reads a query whose filters are among `known`.
    ///
    /// # Errors
    /// Describes the first parameter that is no filter, or no number.
    pub(super) fn read(request: &Request, known: &[&str]) -> Result<Parameters, String> {
        let mut read = Parameters { filters: BTreeMap::new(), offset: 0, limit: MOST };
        for (name, value) in &request.query {
            let number = || -> Result<usize, String> {
                let wrong = || format!("{name}={value:?}: expected a whole number");
                value.parse::<u32>().ok().and_then(|number| usize::try_from(number).ok()).ok_or_else(wrong)
            };
            match name.as_str() {
                "offset" => read.offset = number()?,
                "limit" => read.limit = number()?.min(MOST),
                // The token may also be a parameter.
                "token" => {}
                other if !known.contains(&other) => {
                    let known = known.join(", ");
                    return Err(format!("{other} is not allowed; expected one of offset, limit, {known}"));
                }
                // As at Polaris, the first of several values counts.
                _ => drop(read.filters.entry(name.clone()).or_insert_with(|| value.clone())),
            }
        }
        Ok(read)
    }

    /// Returns the page out of all that was found.
    pub(super) fn rows<T>(&self, found: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        found.into_iter().skip(self.offset).take(self.limit)
    }
}

/// Returns the answer to a query: the rows of its page under the name `list`, of `amount` in all.
pub(super) fn page(list: &str, amount: usize, rows: Vec<Value>) -> Reply {
    let mut body = json!({ "code": code::OK, "info": "execute success", "amount": amount, "size": rows.len() });
    body[list] = rows.into();
    Reply::json(status(code::OK), &body)
}

/// Returns the refusal of a query.
pub(super) fn refused(list: &str, code: u32, info: &str) -> Reply {
    let mut body = json!({ "code": code, "info": info, "amount": 0, "size": 0 });
    body[list] = json!([]);
    Reply::json(status(code), &body)
}

/// Returns the answer to a change of several objects: `responses` has one for each; none if the request was refused as a whole.
pub(super) fn changes(code: u32, info: &str, responses: &[Value]) -> Reply {
    Reply::json(status(code), &json!({ "code": code, "info": info, "size": responses.len(), "responses": responses }))
}

/// Returns the answer to a change from the outcomes, each with its code and text, and the response that shows it.
pub(super) fn outcomes(outcomes: &[(u32, &str)], responses: &[Value]) -> Reply {
    let codes: Vec<u32> = outcomes.iter().map(|(code, _)| *code).collect();
    let worst = outcomes.iter().find(|(code, _)| code / 1000 != 200);
    changes(code::together(&codes), worst.or(outcomes.first()).map_or("", |(_, info)| *info), responses)
}
