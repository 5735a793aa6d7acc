//! Authentication of clients: tokens, and the cookies of their sessions.

use std::time::Instant;

use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::Shared;
use super::request::{Asked, Failed, cookie, parse};
use super::response::{Body, json_of};
use crate::auth::{Denied, Role, Session};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// Returns the client's name and rights, for the page.
pub(super) fn who(shared: &Shared, session: Option<&Session>) -> serde_json::Value {
    json!({
        "name": session.map(|session| session.name.as_str()),
        "may_view": shared.auth.may(session, Role::Viewer),
        "may_act": shared.auth.may(session, Role::Operator),
        "can_sign_in": shared.auth.has_tokens(),
    })
}

pub(super) fn login(body: &[u8], asked: &Asked<'_>, shared: &Shared) -> Result<Response<Body>, Failed> {
    let login: Login = parse(body)?;
    match shared.auth.login(login.token.trim(), asked.peer, Instant::now()) {
        Ok((cookie, session)) => {
            tracing::info!(token = session.name, peer = %asked.peer, "signed in to the console");
            let mut response = json_of(StatusCode::OK, &who(shared, Some(&session)));
            set_cookie(&mut response, shared, &cookie, 12 * 3600);
            Ok(response)
        }
        Err(Denied::Wrong) => {
            tracing::warn!(peer = %asked.peer, "a wrong token for the console");
            Err(Failed::Status(StatusCode::UNAUTHORIZED, "there is no such token".into()))
        }
        Err(Denied::TooMany(seconds)) => Err(Failed::RetryAfter(seconds)),
        Err(Denied::NoRandom) => {
            Err(Failed::Status(StatusCode::SERVICE_UNAVAILABLE, "the system has no random numbers".into()))
        }
    }
}

pub(super) fn logout(asked: &Asked<'_>, shared: &Shared) -> Response<Body> {
    if let Some(cookie) = cookie(asked.headers, &shared.cookie) {
        shared.auth.logout(cookie);
    }
    let mut response = json_of(StatusCode::OK, &who(shared, None));
    set_cookie(&mut response, shared, "", 0);
    response
}

fn set_cookie(response: &mut Response<Body>, shared: &Shared, value: &str, seconds: u32) {
    let secure = if shared.guard.secure() { "; Secure" } else { "" };
    let text = format!("{}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}", shared.cookie);
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}
