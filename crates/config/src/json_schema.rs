//! The configuration's definition as a JSON schema (draft 7, which editors of TOML read): keys, types, bounds, defaults, and descriptions.

use serde_json::{Map, Value, json};
use settings::{Key, Kind};

use super::Config;
use super::schema::ROOT;

/// Makes the schema of the whole file.
pub fn json_schema() -> Value {
    let defaults = serde_json::to_value(Config::default()).unwrap_or(Value::Null);
    let Value::Object(mut schema) = table(ROOT, &defaults) else { return Value::Null };
    schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
    schema.insert("title".into(), format!("Kingpost {}", env!("CARGO_PKG_VERSION")).into());
    Value::Object(schema)
}

/// Makes the schema of a table with these keys; `defaults`: its values without a file.
fn table(keys: &[Key], defaults: &Value) -> Value {
    let mut properties = Map::new();
    for key in keys {
        let default = defaults.get(key.name).unwrap_or(&Value::Null);
        let mut property = kind(key.kind, default);
        if let Value::Object(property) = &mut property {
            property.insert("description".into(), settings::guide::line(key).into());
        }
        // Tables have the defaults of their keys; secrets have none.
        let is_plain = !matches!(key.kind, Kind::Table(_) | Kind::Tables(_) | Kind::Secret | Kind::Secrets);
        if let (Value::Object(property), true, false) = (&mut property, is_plain, default.is_null()) {
            property.insert("default".into(), default.clone());
        }
        properties.insert(key.name.into(), property);
    }
    let required: Vec<&str> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn kind(kind: Kind, default: &Value) -> Value {
    match kind {
        Kind::Text | Kind::Secret => json!({ "type": "string" }),
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Share => json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
        Kind::Duration { .. } => json!({ "type": "string", "pattern": "^\\s*([0-9]+\\s*[a-zA-Z]+\\s*)+$" }),
        Kind::Choice(choices) => json!({ "type": "string", "enum": choices }),
        Kind::Form(form) => json!({ "type": "string", "pattern": form.pattern }),
        Kind::Texts | Kind::Secrets => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::TextsOrTables(keys) => {
            json!({ "type": "array", "items": { "anyOf": [{ "type": "string" }, table(keys, &Value::Null)] } })
        }
        Kind::Table(keys) => table(keys, default),
        Kind::Tables(keys) => json!({ "type": "array", "items": table(keys, &Value::Null) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a value against the part of JSON schema that the schema uses.
    fn fits(value: &Value, schema: &Value) -> Result<(), String> {
        if let Some(any) = schema["items"]["anyOf"].as_array() {
            let items = value.as_array().ok_or("no array")?;
            return items.iter().try_for_each(|item| {
                any.iter().map(|schema| fits(item, schema)).find(Result::is_ok).unwrap_or(Err(format!("{item}")))
            });
        }
        match schema["type"].as_str() {
            Some("object") => {
                let table = value.as_object().ok_or(format!("{value} is no table"))?;
                for required in schema["required"].as_array().into_iter().flatten() {
                    if !required.as_str().is_some_and(|name| table.contains_key(name)) {
                        return Err(format!("{required} is missing"));
                    }
                }
                table.iter().try_for_each(|(key, value)| match schema["properties"].get(key) {
                    Some(schema) => fits(value, schema).map_err(|why| format!("{key}: {why}")),
                    None => Err(format!("{key}: unknown")),
                })
            }
            Some("array") => {
                value.as_array().ok_or("no array")?.iter().try_for_each(|item| fits(item, &schema["items"]))
            }
            Some("integer") => {
                let number = value.as_i64().ok_or(format!("{value} is no integer"))?;
                let bounds =
                    schema["minimum"].as_i64().unwrap_or(i64::MIN)..=schema["maximum"].as_i64().unwrap_or(i64::MAX);
                if bounds.contains(&number) { Ok(()) } else { Err(format!("{number} is out of bounds")) }
            }
            Some("number") => value.as_f64().map(|_| ()).ok_or(format!("{value} is no number")),
            Some("boolean") => value.as_bool().map(|_| ()).ok_or(format!("{value} is no boolean")),
            Some("string") => {
                let text = value.as_str().ok_or(format!("{value} is no string"))?;
                match schema["enum"].as_array() {
                    Some(choices) if !choices.iter().any(|choice| choice == text) => {
                        Err(format!("{text:?} is no choice"))
                    }
                    _ => Ok(()),
                }
            }
            other => Err(format!("a schema of type {other:?}")),
        }
    }

    fn parsed(text: &str) -> Value {
        serde_json::to_value(text.parse::<toml::Table>().expect("TOML")).expect("JSON")
    }

    #[test]
    fn the_described_file_fits_with_and_without_what_it_comments_out() {
        let schema = json_schema();
        assert_eq!(fits(&parsed(&crate::described()), &schema), Ok(()));
        for (text, expected) in [
            ("[proxy.pool]\nsize = 0", Some("proxy: pool: size: 0 is out of bounds")),
            ("[proxy]\nsizes = 1", Some("proxy: sizes: unknown")),
            ("[proxy]\nauth = \"none\"", Some("proxy: auth: \"none\" is no choice")),
            ("[[cluster.nodes]]\nname = \"a\"", Some("cluster: nodes: \"address\" is missing")),
            ("[proxy]\nlisten = [\"a:1\", { address = \"b:1\", route = \"replica\" }]", None),
            ("[proxy]\nlisten = [{ adress = \"b:1\" }]", Some("proxy: listen: {\"adress\":\"b:1\"}")),
        ] {
            assert_eq!(fits(&parsed(text), &schema).err().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn keys_have_defaults_and_descriptions() {
        let schema = json_schema();
        let pool = &schema["properties"]["proxy"]["properties"]["pool"]["properties"];
        assert_eq!(pool["size"]["default"], 20);
        assert_eq!(pool["size"]["description"], "Most server connections for one database and user on one node.");
        assert_eq!(pool["mode"]["enum"], json!(["transaction", "statement", "session"]));
        fn bare(schema: &Value, path: &str, found: &mut Vec<String>) {
            for (key, property) in schema["properties"].as_object().into_iter().flatten() {
                let path = super::super::schema::join(path, key);
                if property.get("description").is_none() {
                    found.push(path.clone());
                }
                let inner = if property["type"] == "array" { &property["items"] } else { property };
                bare(inner, &path, found);
                bare(&inner["anyOf"][1], &path, found);
            }
        }
        let mut found = Vec::new();
        bare(&schema, "", &mut found);
        assert!(found.is_empty(), "no description of {found:?}");
    }

    #[test]
    fn no_secret_has_a_default() {
        let text = json_schema().to_string();
        assert!(!text.contains("change-me"), "an example's password is in the schema");
    }
}
