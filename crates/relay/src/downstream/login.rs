//! Login of a connection, from accept to the first `ReadyForQuery`.

use tls::{ClientCert, ListenMode};
use wire::message::Status;
use wire::startup::{self, End, Startup, V3_2};
use wire::{Sqlstate, StartupError, message, payload, scram};

use super::{Connection, Gone};
use crate::config::AuthMethod;
use crate::shared::{Shared, major};

/// Length limit of a stored application name.
const MAX_NAME: usize = 64;

/// Contents of a startup packet.
#[derive(Debug, Default)]
struct Asked {
    version: u32,
    user: String,
    application_name: String,
    replication: String,
    /// Unknown protocol options.
    unknown: Vec<Vec<u8>>,
}

pub(super) async fn log_in(connection: &mut Connection, shared: &Shared) -> Result<(), Gone> {
    let asked = startup(connection, shared).await?;
    let settings = shared.settings();
    if settings.acceptor.as_ref().is_some_and(|acceptor| acceptor.mode == ListenMode::Require)
        && !connection.stream.is_secure()
    {
        let text = "connection requires TLS";
        let hint = "Give sslmode=require, or better verify-full, in primary_conninfo.";
        return Err(connection.fatal_with_hint(Sqlstate::INVALID_AUTHORIZATION, text, hint).await);
    }
    let mut out = Vec::new();
    if asked.version > V3_2 || !asked.unknown.is_empty() {
        let unknown: Vec<&[u8]> = asked.unknown.iter().map(Vec::as_slice).collect();
        message::negotiate_version(&mut out, asked.version.min(V3_2), &unknown);
        connection.send(&out).await?;
        out.clear();
    }
    if asked.user.is_empty() {
        let text = "no PostgreSQL user name specified in startup packet";
        return Err(connection.fatal(Sqlstate::INVALID_AUTHORIZATION, text).await);
    }
    if !matches!(asked.replication.to_ascii_lowercase().as_str(), "true" | "on" | "yes" | "1") {
        let text = "this is a relay of write-ahead log: it serves physical replication connections only";
        let hint = "Connect to a server or to the proxy for queries; a relay has no data. A standby that synchronizes slots needs the primary behind \
                    the relay in primary_conninfo.";
        // On this code libpq tries the next host of its list.
        return Err(connection.fatal_with_hint(Sqlstate::CANNOT_CONNECT_NOW, text, hint).await);
    }
    connection.user.clone_from(&asked.user);
    connection.application_name = asked.application_name.chars().take(MAX_NAME).collect();
    authenticate(connection, shared, &asked.user).await?;
    // A relay that has not reached its upstream yet answers only queries about its promises.
    let version = shared.slots.greeting().map(|greeting| greeting.server_version).unwrap_or_default();
    message::authentication_ok(&mut out);
    for (name, value) in [
        ("server_version", version.as_str()),
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("application_name", &connection.application_name),
        ("integer_datetimes", "on"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
        ("standard_conforming_strings", "on"),
        wire::replication::ANSWERS_QUESTIONS,
    ] {
        message::parameter_status(&mut out, name, value);
    }
    if major(&version) >= 14 {
        // Values of a standby, for target_session_attrs.
        message::parameter_status(&mut out, "default_transaction_read_only", "off");
        message::parameter_status(&mut out, "in_hot_standby", "on");
    }
    // No request can be cancelled here; clients keep the key all the same.
    message::backend_key(&mut out, connection.id, &[0; 4]);
    message::ready(&mut out, Status::Idle);
    connection.send(&out).await
}

async fn startup(connection: &mut Connection, shared: &Shared) -> Result<Asked, Gone> {
    let settings = shared.settings();
    // Each kind of encryption may be requested once.
    let mut asked_for = [false; 2];
    loop {
        let read = match startup::read(&connection.input) {
            Ok(None) => None,
            Ok(Some((Startup::Ssl, used))) if settings.acceptor.is_some() && !connection.stream.is_secure() => {
                if used != connection.input.len() {
                    let text = "received unencrypted data after SSL request";
                    return Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, text).await);
                }
                connection.input.clear();
                if let Some(acceptor) = &settings.acceptor {
                    let identity = connection.stream.accept(acceptor, b"S", &mut connection.input).await?;
                    connection.identity = Some(Box::new(identity));
                }
                continue;
            }
            Ok(Some((packet @ (Startup::Ssl | Startup::Gss), used))) => {
                let again = std::mem::replace(&mut asked_for[usize::from(packet == Startup::Gss)], true);
                match packet.as_version().filter(|_| again || connection.stream.is_secure()) {
                    Some(error) => return Err(refused(connection, error).await),
                    None => Some((None, used)),
                }
            }
            // No request can be cancelled here, and a cancel request gets no answer.
            Ok(Some((Startup::Cancel { .. }, _))) => return Err(Gone::Closed),
            Ok(Some((Startup::Login { version, parameters }, used))) => Some((Some(asked(version, parameters)), used)),
            Err(error) => return Err(refused(connection, error).await),
        };
        match read {
            None => connection.read().await?,
            Some((None, used)) => {
                connection.input.drain(..used);
                connection.send(b"N").await?;
            }
            Some((Some(asked), used)) => {
                connection.input.drain(..used);
                return match asked {
                    Ok(asked) => Ok(asked),
                    Err(text) => Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, text).await),
                };
            }
        }
    }
}

/// Answers a peer whose first packet is not PostgreSQL's as PostgreSQL does.
async fn refused(connection: &mut Connection, error: StartupError) -> Gone {
    tracing::debug!(%error, "a connection that began with no start-up packet is closed");
    let mut out = Vec::new();
    error.write(&mut out);
    match connection.send(&out).await {
        Ok(()) => Gone::Closed,
        Err(gone) => gone,
    }
}

fn asked(version: u32, parameters: &[u8]) -> Result<Asked, &'static str> {
    let mut asked = Asked { version, ..Asked::default() };
    for parameter in startup::parameters(parameters) {
        let (name, value) = match parameter {
            Ok(pair) => pair,
            Err(End::Whole | End::Broken) => break,
        };
        if name.starts_with(b"_pq_.") {
            asked.unknown.push(name.to_vec());
            continue;
        }
        let Ok(value) = std::str::from_utf8(value) else { return Err("a startup parameter is not UTF-8") };
        match name {
            b"user" => asked.user = value.into(),
            b"application_name" => asked.application_name = value.into(),
            b"replication" => asked.replication = value.into(),
            _ => {}
        }
    }
    Ok(asked)
}

async fn authenticate(connection: &mut Connection, shared: &Shared, user: &str) -> Result<(), Gone> {
    let settings = shared.settings();
    if let Some(identity) = &connection.identity
        && settings.acceptor.as_ref().is_some_and(|acceptor| acceptor.client_cert == ClientCert::VerifyFull)
        && identity.common_name.as_deref() != Some(user)
    {
        let text = format!("certificate authentication failed for user {user:?}: its common name is another");
        return Err(connection.fatal(Sqlstate::INVALID_AUTHORIZATION, &text).await);
    }
    let end_point = connection.identity.as_ref().and_then(|identity| identity.end_point.clone());
    let exchange = match settings.auth {
        AuthMethod::Trust if settings.any_user() || settings.user(user).is_some() => return Ok(()),
        AuthMethod::Trust => {
            let text = format!("role {user:?} is not among the relay's users");
            return Err(connection.fatal(Sqlstate::INVALID_AUTHORIZATION, &text).await);
        }
        AuthMethod::ScramSha256 => match settings.user(user).flatten() {
            Some(verifier) => scram::Server::new(verifier.clone()),
            // The exchange of an unknown user looks the same, and fails at its end.
            None => scram::Server::mock(user, &shared.secret),
        },
    };
    let mut exchange = exchange.offer_binding(end_point);
    let mut out = Vec::new();
    message::authentication_sasl(&mut out, exchange.mechanisms());
    connection.send(&out).await?;
    let first = password_message(connection).await?;
    let answer = match payload::sasl_initial(&first) {
        Some((mechanism, first)) => exchange.choose(mechanism).and_then(|()| exchange.first(first)),
        None => Err(scram::Error::Malformed("SASLInitialResponse")),
    };
    let answer = exchanged(connection, user, answer).await?;
    out.clear();
    message::authentication_sasl_continue(&mut out, &answer);
    connection.send(&out).await?;
    let last = password_message(connection).await?;
    let answer = exchange.last(&last);
    let answer = exchanged(connection, user, answer).await?;
    out.clear();
    message::authentication_sasl_final(&mut out, &answer);
    connection.send(&out).await
}

async fn password_message(connection: &mut Connection) -> Result<Vec<u8>, Gone> {
    match connection.message().await? {
        (b'p', data) if data.len() <= scram::MAX_MESSAGE => Ok(data),
        _ => Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, "expected a password message").await),
    }
}

async fn exchanged(
    connection: &mut Connection,
    user: &str,
    answer: Result<Vec<u8>, scram::Error>,
) -> Result<Vec<u8>, Gone> {
    match answer {
        Ok(answer) => Ok(answer),
        Err(scram::Error::WrongPassword) => {
            let text = format!("password authentication failed for user \"{user}\"");
            Err(connection.fatal(Sqlstate::INVALID_PASSWORD, &text).await)
        }
        Err(error) => Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, &error.to_string()).await),
    }
}
