#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

// RFC 7677, section 3.
const RFC_CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const RFC_SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const RFC_CLIENT_FINAL: &str =
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const RFC_SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

/// Verifiers that PostgreSQL 15.18 stored for these passwords (`CREATE ROLE … PASSWORD`, read from `pg_authid`).
const FROM_POSTGRESQL: [(&str, &str); 3] = [
    (
        "correct horse battery staple",
        "SCRAM-SHA-256$4096:7wuhyoMdqn92XLBKj2prKw==$Ca3S+PxNB0ttQX2EPG+4tcrifqYYmfPnVAdWWSqbbQU=:rfe5d8vBE9r4VdGeqBB32Q80D7JcgQrVFDZEijD4DI4=",
    ),
    (
        // No-break space, ligature, Ångström sign: prepared before hashing.
        "p\u{e4}ss\u{a0}w\u{fb01}rd \u{212b}",
        "SCRAM-SHA-256$4096:KZ6tmW3f4qXzmdW+687nww==$JfftR/vYicyAFyQkC4ecnQqMBgFFawg3lhXJier/efQ=:iZJLrcCnNRYaI7RQnTUllEL0jdbiZu3pdui89lDCClg=",
    ),
    (
        // Forbidden by SASLprep: hashed unchanged.
        "raw\u{340}\u{341}",
        "SCRAM-SHA-256$4096:1uzrLHlpeW8XFehmLTZMew==$ipLJw0U05IoNfTakb2otjt6SLEe3c3tF7Q5LHypVoMw=:knNweamwJ6QHDEMTuqn6xTueKoDmxoWGFHN385DJdSM=",
    ),
];

/// Returns a verifier with a single iteration.
fn cheap(password: &str) -> Verifier {
    Verifier::from(&SaltedKeys::derive(password, b"sixteen byte salt", 1).unwrap())
}

fn log_in(server: &mut Server, client: &mut Client) -> Result<(), Error> {
    let challenge = server.first(&client.first())?;
    let proof = client.final_(&challenge)?;
    let signature = server.last(&proof)?;
    client.verify(&signature)
}

fn client(password: &str) -> Client {
    Client::new(Credential::password(password)).unwrap()
}

// === Against others' figures ===

#[test]
fn client_speaks_the_rfc_example() {
    let mut client = Client::with_nonce(Credential::password("pencil"), "user", "rOprNGfwEbeRWgbNEkqO");
    assert_eq!(client.first(), RFC_CLIENT_FIRST.as_bytes());
    assert_eq!(client.final_(RFC_SERVER_FIRST.as_bytes()).unwrap(), RFC_CLIENT_FINAL.as_bytes());
    assert_eq!(client.verify(RFC_SERVER_FINAL.as_bytes()), Ok(()));
}

#[test]
fn server_speaks_the_rfc_example() {
    let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let mut server = Server::new(Verifier::from(&SaltedKeys::derive("pencil", &salt, 4096).unwrap()));
    let challenge = server.first_with(RFC_CLIENT_FIRST.as_bytes(), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0").unwrap();
    assert_eq!(challenge, RFC_SERVER_FIRST.as_bytes());
    assert_eq!(server.last(RFC_CLIENT_FINAL.as_bytes()).unwrap(), RFC_SERVER_FINAL.as_bytes());
}

#[test]
fn postgresql_verifiers_match_their_passwords() {
    for (password, text) in FROM_POSTGRESQL {
        let verifier = Verifier::parse(text).unwrap();
        assert_eq!(verifier.encode(), text);
        assert!(verifier.matches(password), "{password:?}");
        assert!(!verifier.matches("another"), "{password:?}");
        let again = SaltedKeys::derive(password, &verifier.salt, verifier.iterations).unwrap();
        assert!(Verifier::from(&again) == verifier, "{password:?}: the server key differs");
    }
}

#[test]
fn passwords_are_prepared_as_postgresql_does() {
    for (password, prepared) in [
        ("plain", "plain"),
        ("control\u{7}", "control\u{7}"),
        ("I\u{ad}X", "IX"),
        ("\u{aa}", "a"),
        ("\u{2168}", "IX"),
        ("a\u{3000}b\u{200b}c", "a b c"),
        // Direction is checked before normalization, which here turns other characters into right-to-left ones, and the reverse.
        ("x\u{2135}", "x\u{5d0}"),
        ("\u{fb36}", "\u{5d6}\u{5bc}"),
        // The result would be empty.
        ("\u{ad}\u{200d}", "\u{ad}\u{200d}"),
        // Forbidden, unassigned in Unicode 3.2, of mixed direction: unchanged.
        ("\u{aa}\u{7}", "\u{aa}\u{7}"),
        ("\u{aa}\u{340}", "\u{aa}\u{340}"),
        ("\u{aa}\u{1f600}", "\u{aa}\u{1f600}"),
        ("\u{aa}\u{627}1", "\u{aa}\u{627}1"),
    ] {
        assert_eq!(saslprep::prepare(password), prepared, "{password:?}");
    }
}

// === The exchange ===

#[test]
fn right_password_logs_in_and_both_sides_end_with_its_keys() {
    let verifier = Verifier::from_password("secret").unwrap();
    assert_eq!((verifier.iterations, verifier.salt.len()), (DEFAULT_ITERATIONS, SALT_LEN));
    let (mut server, mut client) = (Server::new(verifier.clone()), client("secret"));
    assert_eq!(log_in(&mut server, &mut client), Ok(()));

    let keys = Arc::clone(client.keys().unwrap());
    assert!(Verifier::from(&*keys) == verifier);
    assert!(server.into_keys().unwrap() == *keys);

    // The keys of a login are enough to log in elsewhere.
    let mut through = Client::new(Credential::Keys(keys)).unwrap();
    assert_eq!(log_in(&mut Server::new(verifier), &mut through), Ok(()));
}

#[test]
fn each_of_several_verifiers_lets_in() {
    let mut verifiers = Verifiers::from(cheap("one"));
    verifiers.add_password("two").unwrap();
    for (password, expected) in [("one", Ok(())), ("two", Ok(())), ("three", Err(Error::WrongPassword))] {
        let (mut server, mut client) = (Server::new(verifiers.clone()), client(password));
        assert_eq!(log_in(&mut server, &mut client), expected, "{password}");
        // The keys are those of the password that was proved.
        let keys = server.into_keys().map(|keys| Verifier::from(&keys).matches(password));
        assert_eq!(keys, expected.is_ok().then_some(true), "{password}");
    }
    assert_eq!(verifiers.add(Verifier::from_password("other salt").unwrap()), Err(Error::OtherSalt));
    assert!(matches!(verifiers.add_password(""), Err(Error::Malformed(_))));
}

#[test]
fn wrong_password_and_unknown_user_look_alike() {
    let secret = [7; 32];
    for mut server in [Server::new(cheap("secret")), Server::mock("nobody", &secret)] {
        assert_eq!(log_in(&mut server, &mut client("guess")), Err(Error::WrongPassword));
        assert!(server.into_keys().is_none());
    }
    let salt = |user, secret: &[u8]| Server::mock(user, secret).verifiers.salt_and_iterations().0.to_vec();
    assert_eq!(salt("nobody", &secret), salt("nobody", &secret));
    assert_ne!(salt("nobody", &secret), salt("no one", &secret));
    assert_ne!(salt("nobody", &secret), salt("nobody", &[8; 32]));
}

#[test]
fn mock_refuses_even_a_proof_that_fits() {
    let mut server = Server { mock: true, ..Server::new(cheap("secret")) };
    assert_eq!(log_in(&mut server, &mut client("secret")), Err(Error::WrongPassword));
}

#[test]
fn impostor_is_found_out() {
    let verifier = Verifier { server_key: [1; 32], ..cheap("secret") };
    let mut client = client("secret");
    assert_eq!(log_in(&mut Server::new(verifier), &mut client), Err(Error::ServerSignature));
    assert!(client.keys().is_none());
}

#[test]
fn cached_keys_are_used_while_they_fit() {
    let keys = Arc::new(SaltedKeys::derive("secret", b"sixteen byte salt", 1).unwrap());
    // The password is wrong: only the cache can make the first of these succeed.
    let credential = Credential::Password { password: "wrong".into(), cached: Some(Arc::clone(&keys)) };
    let mut client = Client::new(credential.clone()).unwrap();
    assert_eq!(log_in(&mut Server::new(cheap("secret")), &mut client), Ok(()));
    assert!(Arc::ptr_eq(client.keys().unwrap(), &keys));

    let set_anew = Verifier::from(&SaltedKeys::derive("wrong", b"another salt", 1).unwrap());
    let mut client = Client::new(credential).unwrap();
    assert_eq!(log_in(&mut Server::new(set_anew.clone()), &mut client), Ok(()));
    assert!(client.keys().unwrap().salt == b"another salt");

    let mut client = Client::new(Credential::Keys(keys)).unwrap();
    assert_eq!(log_in(&mut Server::new(set_anew), &mut client), Err(Error::StaleKeys));
}

#[test]
fn steps_out_of_order_are_refused() {
    let mut server = Server::new(cheap("secret"));
    assert!(matches!(server.last(b"c=biws,r=x,p="), Err(Error::OutOfOrder(_))));
    assert!(matches!(server.first(b"n,,n=,r=x"), Err(Error::OutOfOrder(_))), "a failed exchange is over");
    let mut client = client("secret");
    assert!(matches!(client.verify(b"v="), Err(Error::OutOfOrder(_))));
    assert!(matches!(client.final_(b"r=x,s=eA==,i=1"), Err(Error::OutOfOrder(_))));
}

// === Malformed and hostile ===

#[test]
fn client_first_forms() {
    enum Outcome {
        Taken,
        Malformed,
        Unsupported,
    }
    use Outcome::{Malformed, Taken, Unsupported};
    for (message, outcome) in [
        ("n,,n=,r=abc", Taken),
        ("y,,n=,r=abc", Taken),
        ("n,,n=someone else,r=abc", Taken),
        ("n,,n=,r=abc,x=optional", Taken),
        ("p=tls-server-end-point,,n=,r=abc", Unsupported),
        ("n,a=other,n=,r=abc", Unsupported),
        ("n,,m=ext,n=,r=abc", Unsupported),
        ("", Malformed),
        ("n", Malformed),
        ("n,", Malformed),
        ("n,,", Malformed),
        ("nn,,n=,r=abc", Malformed),
        ("x,,n=,r=abc", Malformed),
        ("n,,r=abc", Malformed),
        ("n,,n=", Malformed),
        ("n,,n=,r=", Malformed),
        ("n,,n=,r=a b", Malformed),
        ("n,,n=,r=\u{e4}", Malformed),
        ("n,,n=,r=abc,1=x", Malformed),
        ("n,,n=,r=abc,x", Malformed),
        ("n,,n=,r=abc\0", Malformed),
    ] {
        let result = Server::new(cheap("secret")).first(message.as_bytes());
        let as_expected = match outcome {
            Taken => result.is_ok(),
            Malformed => matches!(result, Err(Error::Malformed(_))),
            Unsupported => matches!(result, Err(Error::Unsupported(_))),
        };
        assert!(as_expected, "{message:?}: {result:?}");
    }
    let long = format!("n,,n=,r={}", "x".repeat(MAX_MESSAGE));
    assert!(matches!(Server::new(cheap("secret")).first(long.as_bytes()), Err(Error::Malformed(_))));
    assert!(matches!(Server::new(cheap("secret")).first(b"n,,n=\xff,r=abc"), Err(Error::Malformed(_))));
}

/// Runs a login whose client is correct, except for the `change` to its final message.
fn last_with(gs2: &str, change: impl Fn(&str) -> String) -> Result<Vec<u8>, Error> {
    let mut server = Server::new(cheap("secret"));
    let mut client = client("secret");
    let first = String::from_utf8(client.first()).unwrap().replacen('n', gs2, 1);
    let challenge = server.first(first.as_bytes()).unwrap();
    let last = String::from_utf8(client.final_(&challenge).unwrap()).unwrap();
    server.last(change(&last).as_bytes())
}

#[test]
fn client_final_forms() {
    assert!(last_with("n", str::to_owned).is_ok());
    assert!(matches!(last_with("y", str::to_owned), Err(Error::Malformed(_))), "c= must be the header's own");
    // Well-formed, but signed over other data.
    assert_eq!(last_with("y", |last| last.replacen("biws", "eSws", 1)), Err(Error::WrongPassword));
    assert_eq!(last_with("n", |last| last.replacen(",p=", ",x=1,p=", 1)), Err(Error::WrongPassword));
    let changes: [fn(&str) -> String; 8] = [
        |last| last.replacen("biws", "eSws", 1),
        |last| last.replacen(",r=", ",r=x", 1),
        |last| last.replacen(",p=", "x,p=", 1),
        |last| last.replacen(",p=", ",p=AA", 1),
        |last| last.replacen(",p=", ",q=", 1),
        |last| format!("{last},x=1"),
        |last| last[..last.len() - 1].to_owned(),
        |_| String::new(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let result = last_with("n", change);
        assert!(matches!(result, Err(Error::Malformed(_))), "{n}: {result:?}");
    }
}

#[test]
fn server_first_forms() {
    for (rest, taken) in [
        ("NONCEx,s=eA==,i=1", true),
        ("NONCEx,s=eA==,i=1,x=optional", true),
        ("NONCE,s=eA==,i=1", false),
        ("x,s=eA==,i=1", false),
        ("NONCEx,s=,i=1", false),
        ("NONCEx,s=?,i=1", false),
        ("NONCEx,s=eA==,i=0", false),
        ("NONCEx,s=eA==,i=-1", false),
        ("NONCEx,s=eA==,i=+1", false),
        ("NONCEx,s=eA==,i=1000001", false),
        ("NONCEx,s=eA==,i=99999999999999999999", false),
        ("NONCEx,s=eA==,i=", false),
        ("NONCEx,i=1,s=eA==", false),
        ("NONCEx,s=eA==", false),
        ("", false),
    ] {
        let result =
            Client::with_nonce(Credential::password("secret"), "", "NONCE").final_(format!("r={rest}").as_bytes());
        assert_eq!(result.is_ok(), taken, "{rest:?}: {result:?}");
    }
    let mut client = client("secret");
    assert!(matches!(client.final_(b"m=ext,r=x,s=eA==,i=1"), Err(Error::Unsupported(_))));
}

#[test]
fn server_final_forms() {
    for (message, error) in [
        ("e=invalid-proof", Error::Refused("invalid-proof")),
        ("e=whatever the server likes", Error::Refused("other-error")),
        ("v=AAAA", Error::Malformed("the signature is not 32 bytes in base64")),
        ("v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", Error::ServerSignature),
        ("", Error::Malformed("an attribute has no value")),
    ] {
        let mut client = Client::with_nonce(Credential::password("secret"), "", "NONCE");
        client.final_(b"r=NONCEx,s=eA==,i=1").unwrap();
        assert_eq!(client.verify(message.as_bytes()), Err(error), "{message:?}");
        assert!(client.keys().is_none());
    }
}

#[test]
fn verifier_forms() {
    let good = FROM_POSTGRESQL[0].1;
    assert!(Verifier::parse(good).is_ok());
    for (bad, unsupported) in [
        (String::new(), true),
        ("md5d41d8cd98f00b204e9800998ecf8427e".to_owned(), true),
        (good.replace("SHA-256", "SHA-1"), true),
        (good.replace(":7wu", "7wu"), false),
        (good.replace("4096", ""), false),
        (good.replace("4096", "0"), false),
        (good.replace("4096", "1000001"), false),
        (good.replace("4096", "4294971392"), false),
        (good.replace("$Ca3", "Ca3"), false),
        (good.replace(":rfe5", "rfe5"), false),
        (good.replace(":rfe5", ":"), false),
        (format!("{good}:"), false),
        (good.replace("7wuhyoMdqn92XLBKj2prKw==", ""), false),
        (good.replace("7wuhyoMdqn92XLBKj2prKw==", &"A".repeat(2000)), false),
        (good.replace("7wuhyoMdqn92XLBKj2prKw==", &"A".repeat(8000)), false),
    ] {
        let result = Verifier::parse(&bad);
        let expected = if unsupported { "Unsupported" } else { "Malformed" };
        assert!(format!("{result:?}").contains(expected), "{bad:?}: {result:?}");
    }
    assert!(matches!(Verifier::from_password(""), Err(Error::Malformed(_))));
    assert!(matches!(Verifier::from_password(&"x".repeat(MAX_PASSWORD + 1)), Err(Error::Malformed(_))));
}

#[test]
fn debug_shows_nothing_secret() {
    let keys = Arc::new(SaltedKeys::derive("secret", b"sixteen byte salt", 1).unwrap());
    let (mut server, mut client) = (Server::new(Verifier::from(&*keys)), client("secret"));
    log_in(&mut server, &mut client).unwrap();
    assert_eq!(format!("{keys:?}"), "SaltedKeys { iterations: 1, .. }");
    assert_eq!(format!("{:?}", Verifier::from(&*keys)), "Verifier { iterations: 1, .. }");
    assert_eq!(format!("{server:?}"), r#"Server { state: "succeeded", .. }"#);
    assert_eq!(format!("{client:?}"), r#"Client { state: "succeeded", .. }"#);
    assert_eq!(format!("{:?}", Credential::Keys(keys)), "Credential::Keys(..)");
    assert_eq!(format!("{:?}", Credential::password("secret")), "Credential::Password(..)");
}

// === Properties ===

/// Returns text that often passes the first checks.
fn scramish() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just("n,".to_owned()),
        Just("y,".to_owned()),
        Just(",".to_owned()),
        Just("=".to_owned()),
        Just("c=biws".to_owned()),
        Just("i=2".to_owned()),
        Just("s=eA==".to_owned()),
        "[a-z]=[ -~]{0,12}",
        any::<String>(),
    ];
    prop_oneof![
        proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..300),
    ]
}

proptest! {
    #[test]
    fn any_password_logs_in_and_no_other(password in "\\PC{1,40}", other in "\\PC{1,40}", salt in proptest::collection::vec(any::<u8>(), 1..64)) {
        let verifier = Verifier::from(&SaltedKeys::derive(&password, &salt, 2).unwrap());
        prop_assert!(Verifier::parse(&verifier.encode()).unwrap() == verifier);
        prop_assert_eq!(log_in(&mut Server::new(verifier.clone()), &mut client(&password)), Ok(()));
        let same = saslprep::prepare(&password) == saslprep::prepare(&other);
        let expected = if same { Ok(()) } else { Err(Error::WrongPassword) };
        prop_assert_eq!(log_in(&mut Server::new(verifier), &mut client(&other)), expected);
    }

    #[test]
    fn nothing_that_comes_panics(first in scramish(), last in scramish()) {
        let mut server = Server::new(cheap("secret"));
        let _ = server.first(&first);
        let mut server = Server::new(cheap("secret"));
        server.first(b"n,,n=,r=abc").unwrap();
        prop_assert!(server.last(&last).is_err());
        let _ = client("secret").final_(&first);
        let mut client = Client::with_nonce(Credential::password("secret"), "", "NONCE");
        client.final_(b"r=NONCEx,s=eA==,i=1").unwrap();
        prop_assert!(client.verify(&last).is_err());
        let _ = Verifier::parse(&String::from_utf8_lossy(&first));
    }

    #[test]
    fn a_changed_byte_never_logs_in(at in any::<prop::sample::Index>(), to in any::<u8>(), which in 0..4_u8) {
        let (mut server, mut client) = (Server::new(cheap("secret")), client("secret"));
        let mut changed = false;
        let mut tamper = |turn: u8, mut message: Vec<u8>| {
            if turn == which {
                let at = at.index(message.len());
                changed = message[at] != to;
                message[at] = to;
            }
            message
        };
        let outcome = (|| {
            let first = tamper(0, client.first());
            let challenge = tamper(1, server.first(&first)?);
            let proof = tamper(2, client.final_(&challenge)?);
            let signature = tamper(3, server.last(&proof)?);
            client.verify(&signature)
        })();
        prop_assert_eq!(outcome.is_err(), changed);
    }
}

// === Channel binding ===

/// Runs one exchange, with the offer that the client was told of, and the certificate that each side sees.
fn bound_exchange(offered: Option<&[u8]>, seen: Option<(&[u8], bool)>, password: &str) -> Result<(), Error> {
    let mut server = Server::new(cheap("secret")).offer_binding(offered.map(<[u8]>::to_vec));
    let mut client = Client::new(Credential::password(password))?;
    if let Some((end_point, told)) = seen {
        client = client.bound(end_point.to_vec(), told);
    }
    server.choose(client.mechanism().as_bytes())?;
    let challenge = server.first(&client.first())?;
    let proof = client.final_(&challenge)?;
    client.verify(&server.last(&proof)?)
}

#[test]
fn channel_binding() {
    let (ours, other) = (&b"hash of our certificate"[..], &b"hash of another"[..]);
    assert_eq!(bound_exchange(Some(ours), Some((ours, true)), "secret"), Ok(()));
    assert_eq!(bound_exchange(Some(ours), Some((ours, true)), "wrong"), Err(Error::WrongPassword));
    assert_eq!(bound_exchange(Some(ours), None, "secret"), Ok(()), "a client that cannot bind need not");
    assert_eq!(bound_exchange(None, Some((ours, false)), "secret"), Ok(()), "could bind, and there is no offer");
    // A man in the middle has another certificate, or hides the offer.
    assert!(matches!(bound_exchange(Some(ours), Some((other, true)), "secret"), Err(Error::Malformed(_))));
    assert!(matches!(bound_exchange(Some(ours), Some((ours, false)), "secret"), Err(Error::Malformed(_))));
    // Chosen without an offer.
    assert!(matches!(bound_exchange(None, Some((ours, true)), "secret"), Err(Error::Unsupported(_))));
}

#[test]
fn the_mechanism_and_the_flag_agree() {
    let server = |mechanism: &str| {
        let mut server = Server::new(cheap("secret")).offer_binding(Some(b"hash".to_vec()));
        server.choose(mechanism.as_bytes()).unwrap();
        server
    };
    for (mechanism, first, good) in [
        (MECHANISM_PLUS, "p=tls-server-end-point,,n=,r=abc", true),
        (MECHANISM_PLUS, "p=tls-unique,,n=,r=abc", false),
        (MECHANISM_PLUS, "p=tls-server-end-point,a=x,n=,r=abc", false),
        (MECHANISM_PLUS, "n,,n=,r=abc", false),
        (MECHANISM_PLUS, "y,,n=,r=abc", false),
        (MECHANISM, "n,,n=,r=abc", true),
        (MECHANISM, "p=tls-server-end-point,,n=,r=abc", false),
        (MECHANISM, "y,,n=,r=abc", false),
    ] {
        assert_eq!(server(mechanism).first(first.as_bytes()).is_ok(), good, "{mechanism} {first}");
    }
}
