//! Parser of an instance sent as XML, into the same tree as JSON: attributes are `@name`, text beside them is `$`.
//!
//! ```text
//!  <instance><app>SHOP</app><port enabled="true">80</port><metadata><zone>a</zone></metadata></instance>
//!  {"instance": {"app": "SHOP", "port": {"@enabled": "true", "$": "80"}, "metadata": {"zone": "a"}}}
//! ```
//!
//! Document types are rejected, so the only entities are XML's own; depth and number of elements are limited.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use serde_json::{Map, Value};

use crate::api::ApiError;

/// Maximum nesting of elements, including the outermost. An instance has four: instance, dataCenterInfo, metadata, an entry.
const DEEPEST: usize = 8;
/// Maximum number of elements in a document.
const MOST: usize = 4096;

/// An element whose end tag has not been read.
struct Open {
    name: String,
    attributes: Map<String, Value>,
    children: Map<String, Value>,
    text: String,
}

/// Parses a document whose outermost element is `instance`.
///
/// # Errors
/// The document is not XML, too deep or too long, has a document type or unknown entities, or an element twice in one place.
pub(super) fn read(document: &[u8]) -> Result<Value, ApiError> {
    let wrong = |why: &dyn std::fmt::Display| ApiError::bad(format!("the body: not the XML of an instance: {why}"));
    let document = std::str::from_utf8(document).map_err(|error| wrong(&error))?;
    let mut reader = Reader::from_str(document);
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    let mut elements = 0;
    loop {
        match reader.read_event().map_err(|error| wrong(&error))? {
            event @ (Event::Start(_) | Event::Empty(_)) => {
                let ends = matches!(event, Event::Empty(_));
                let (Event::Start(start) | Event::Empty(start)) = event else { continue };
                elements += 1;
                if open.len() == DEEPEST || elements > MOST {
                    return Err(wrong(&format_args!("more than {DEEPEST} elements in each other, or {MOST} in all")));
                }
                if root.is_some() {
                    return Err(wrong(&"something follows its end"));
                }
                open.push(opened(&start).map_err(|error| wrong(&error))?);
                if ends {
                    close(&mut open, &mut root).map_err(|name| wrong(&format_args!("<{name}> is there twice")))?;
                }
            }
            Event::End(_) => {
                close(&mut open, &mut root).map_err(|name| wrong(&format_args!("<{name}> is there twice")))?
            }
            Event::Text(text) => {
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&text.xml_content().map_err(|error| wrong(&error))?);
                }
            }
            Event::CData(text) => {
                if let Some(element) = open.last_mut() {
                    element.text.push_str(&text.xml_content().map_err(|error| wrong(&error))?);
                }
            }
            Event::GeneralRef(name) => {
                let Some(element) = open.last_mut() else { return Err(wrong(&"an entity outside of it")) };
                if let Some(character) = name.resolve_char_ref().map_err(|error| wrong(&error))? {
                    element.text.push(character);
                    continue;
                }
                let name = name.decode().map_err(|error| wrong(&error))?;
                let found = quick_xml::escape::resolve_predefined_entity(&name);
                element.text.push_str(found.ok_or_else(|| wrong(&format_args!("the entity {name:?} is not known")))?);
            }
            Event::DocType(_) => return Err(wrong(&"document types are not read")),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
            Event::Eof => break,
        }
    }
    match root {
        Some((name, value)) if open.is_empty() && name == "instance" => {
            Ok(Value::Object(Map::from_iter([("instance".to_owned(), value)])))
        }
        Some((name, _)) if open.is_empty() => Err(wrong(&format_args!("it begins with <{name}>"))),
        _ => Err(wrong(&"it ends too early")),
    }
}

fn opened(start: &BytesStart<'_>) -> Result<Open, quick_xml::Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut attributes = Map::new();
    for attribute in start.attributes() {
        let attribute = attribute?;
        attributes.insert(format!("@{}", text(attribute.key.as_ref())), attribute.unescape_value()?.into());
    }
    Ok(Open { name: untag(&text(start.name().as_ref())), attributes, children: Map::new(), text: String::new() })
}

/// Ends the innermost element; returns the name of a duplicate as an error.
fn close(open: &mut Vec<Open>, root: &mut Option<(String, Value)>) -> Result<(), String> {
    let Some(Open { name, mut attributes, children, text }) = open.pop() else { return Ok(()) };
    let value = if children.is_empty() && attributes.is_empty() {
        Value::String(text)
    } else {
        let blank = text.trim().is_empty();
        attributes.extend(children);
        if !blank {
            attributes.insert("$".to_owned(), text.into());
        }
        Value::Object(attributes)
    };
    match open.last_mut() {
        None => *root = Some((name, value)),
        Some(outer) if outer.children.contains_key(&name) => return Err(name),
        Some(outer) => {
            outer.children.insert(name, value);
        }
    }
    Ok(())
}

/// Decodes an element name written by [`super::view`]: `a_x0020_b` is `a b`.
fn untag(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("_x") {
        let (before, found) = rest.split_at(at);
        text.push_str(before);
        let code = found[2..].split_once('_').filter(|(digits, _)| (4..=6).contains(&digits.len()));
        let character =
            code.and_then(|(digits, after)| Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, after)));
        rest = match character {
            Some((character, after)) => {
                text.push(character);
                after
            }
            None => {
                text.push_str("_x");
                &found[2..]
            }
        };
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::view;
    use super::*;

    #[test]
    fn an_instance() {
        let sent = br#"<?xml version="1.0" encoding="UTF-8"?>
            <!-- as Netflix' client writes it -->
            <instance>
              <instanceId>10.0.0.1:shop</instanceId><app>SHOP</app><ipAddr>10.0.0.1</ipAddr>
              <port enabled="true">8080</port><securePort enabled='false'>443</securePort>
              <homePageUrl>http://a/?x=1&amp;y=&#50;</homePageUrl><statusPageUrl><![CDATA[http://a/<s>]]></statusPageUrl>
              <dataCenterInfo class="com.netflix.X$D"><name>MyOwn</name></dataCenterInfo>
              <leaseInfo><durationInSecs>30</durationInSecs></leaseInfo>
              <metadata class="java.util.Collections$EmptyMap"/><vipAddress/>
            </instance>"#;
        let expected = json!({ "instance": {
            "instanceId": "10.0.0.1:shop", "app": "SHOP", "ipAddr": "10.0.0.1",
            "port": { "@enabled": "true", "$": "8080" }, "securePort": { "@enabled": "false", "$": "443" },
            "homePageUrl": "http://a/?x=1&y=2", "statusPageUrl": "http://a/<s>",
            "dataCenterInfo": { "@class": "com.netflix.X$D", "name": "MyOwn" },
            "leaseInfo": { "durationInSecs": "30" }, "metadata": { "@class": "java.util.Collections$EmptyMap" }, "vipAddress": "",
        } });
        assert_eq!(read(sent).unwrap(), expected);
    }

    #[test]
    fn what_is_refused() {
        let deep = format!("{}{}", "<a>".repeat(9), "</a>".repeat(9));
        let many = format!("<instance>{}</instance>", (0..5000).map(|n| format!("<e{n}/>")).collect::<String>());
        for sent in [
            "",
            "text",
            "<instance>",
            "<instance></instanc>",
            "<other/>",
            "<instance/><instance/>",
            "<instance><a/><a/></instance>",
            "<instance>&nobody;</instance>",
            "<!DOCTYPE x [<!ENTITY a \"b\">]><instance>&a;</instance>",
            "<instance a=\"&a;\"/>",
            "<instance a=b/>",
            &deep,
            &many,
        ] {
            assert!(read(sent.as_bytes()).is_err(), "{sent:.80}");
        }
        assert!(read(b"<instance>\xff</instance>").is_err());
    }

    proptest! {
        /// XML that is written is parsed into the same values, and no input causes a panic.
        #[test]
        fn what_is_shown_is_read(pairs in proptest::collection::btree_map("[ -~äµ名]{1,12}", "[ -~ä名]{0,12}", 0..6), garbage in "\\PC{0,200}") {
            let _ = read(garbage.as_bytes());
            let metadata: Map<String, Value> = pairs
                .into_iter()
                .filter(|(key, _)| !key.starts_with('@') && key != "$" && !key.contains("_x"))
                .map(|(key, value)| (key, value.into()))
                .collect();
            let tree = json!({ "app": "A", "metadata": metadata });
            let found = read(view::xml("instance", &tree).as_bytes()).unwrap();
            let expected = if metadata.is_empty() { json!("") } else { json!(metadata) };
            prop_assert_eq!(&found["instance"]["metadata"], &expected);
        }
    }
}
