//! Responses and their bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use super::error::ApiError;
use super::list_cache::Pieces;

/// The body of a response.
#[derive(Debug)]
pub enum Body {
    /// The whole body at once; `None` after it was sent.
    Whole(Option<Bytes>),
    /// A body of shared pieces: the index of the next one, the bytes left, and the bytes sent without a pause.
    Pieces(Pieces, usize, u64, u64),
    /// A stream of pieces that ends when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

/// Bytes of a large body after which the task yields. A client that reads as fast as the server writes would otherwise occupy a thread that answers
/// heartbeats for some milliseconds per megabyte.
const TURN: u64 = 128 << 10;

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Pieces(pieces, next, left, in_a_row) => {
                if *in_a_row >= TURN {
                    *in_a_row = 0;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let piece = pieces.piece(*next);
                let bytes = piece.as_ref().map_or(0, |piece| piece.len() as u64);
                *next += 1;
                *left -= bytes;
                *in_a_row += bytes;
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Body::Stream(pieces) => pieces.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Body::Pieces(_, _, left, _) => *left == 0,
            Body::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Pieces(_, _, left, _) => SizeHint::with_exact(*left),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}

/// A response under construction.
#[derive(Debug)]
pub struct Reply {
    response: Response<Body>,
    /// True if the response was delayed on purpose, so that its duration says nothing.
    pub waited: bool,
}

/// Content type of JSON.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Content type of plain text.
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Content type of XML.
pub(super) const XML: HeaderValue = HeaderValue::from_static("application/xml");
/// Content type of server-sent events.
pub(super) const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

impl Reply {
    /// Creates a response without a body.
    pub fn empty(status: StatusCode) -> Reply {
        let mut response = Response::new(Body::Whole(None));
        *response.status_mut() = status;
        Reply { response, waited: false }
    }

    /// Creates a response of `bytes` with the content type `kind`.
    pub fn bytes(status: StatusCode, kind: HeaderValue, bytes: impl Into<Bytes>) -> Reply {
        let mut response = Response::new(Body::Whole(Some(bytes.into())));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Reply { response, waited: false }
    }

    /// Creates a response with a shared body and status 200; `packed` means that the body is gzip.
    pub(super) fn pieces(kind: HeaderValue, body: Pieces, packed: bool) -> Reply {
        let left = body.len();
        let mut response = Response::new(Body::Pieces(body, 0, left, 0));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        if packed {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Reply { response, waited: false }
    }

    /// Creates a response with a value as JSON.
    pub fn json(status: StatusCode, value: &impl Serialize) -> Reply {
        match serde_json::to_vec(value) {
            Ok(bytes) => Reply::bytes(status, JSON, bytes),
            // None of our own types has a key that is not a string, or a Serialize that fails.
            Err(error) => {
                tracing::error!(%error, "an answer cannot be written as JSON");
                Reply::empty(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// Creates a response with a value as JSON and status 200.
    pub fn ok(value: &impl Serialize) -> Reply {
        Reply::json(StatusCode::OK, value)
    }

    /// Creates a plain-text response.
    pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
        Reply::bytes(status, TEXT, text)
    }

    /// Creates a response with a stream of pieces.
    pub fn stream(kind: HeaderValue, pieces: mpsc::Receiver<Bytes>) -> Reply {
        let mut response = Response::new(Body::Stream(pieces));
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Reply { response, waited: true }
    }

    /// Marks a response that was delayed on purpose.
    #[must_use]
    pub fn waited(mut self, waited: bool) -> Reply {
        self.waited = waited;
        self
    }

    /// Adds a header; omits a value that is not valid in a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: impl TryInto<HeaderValue>) -> Reply {
        if let Ok(value) = value.try_into() {
            self.response.headers_mut().insert(name, value);
        }
        self
    }

    /// Adds the headers that HTTP requires with an error.
    #[must_use]
    pub fn with_error_headers(self, error: &ApiError) -> Reply {
        match error {
            ApiError::MethodNotAllowed { allow } => self.header(header::ALLOW, *allow),
            ApiError::Unauthorized => self.header(header::WWW_AUTHENTICATE, "Bearer"),
            ApiError::Busy { .. } | ApiError::Unavailable(_) => self.header(header::RETRY_AFTER, "1"),
            _ => self,
        }
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Compresses a whole body that is large enough.
    #[must_use]
    pub fn gzip(mut self) -> Reply {
        /// Minimum length: a smaller body fits into one packet either way.
        const WORTH: usize = 1024;
        if let Body::Whole(Some(bytes)) = self.response.body()
            && bytes.len() >= WORTH
            && !self.response.headers().contains_key(header::CONTENT_ENCODING)
        {
            let packed = super::gzip::pack(bytes);
            *self.response.body_mut() = Body::Whole(Some(packed.into()));
            let headers = self.response.headers_mut();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        self
    }

    /// Returns the response for hyper.
    pub fn into_response(self) -> Response<Body> {
        self.response
    }
}
