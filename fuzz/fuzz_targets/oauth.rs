//! A client's first response of OAUTHBEARER, and the token in it.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;
use wire::oauth::{MAX_TOKEN, Response, read};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Response::Token(token)) = read(bytes) {
        assert!(!token.is_empty() && token.len() <= MAX_TOKEN);
        assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)));
        // The same token, sent again, is the same token.
        let again = format!("n,,\x01auth=Bearer {token}\x01\x01");
        assert!(read(again.as_bytes()) == Ok(Response::Token(token)));
    }
});
