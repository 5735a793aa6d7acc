//! Prepared statements that a text names: EXECUTE, PREPARE and DEALLOCATE.

use pg_query::NodeEnum;
use pg_query::protobuf::{Node, ParseResult};

/// The use of a prepared statement's name in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    /// EXECUTE, by itself or below EXPLAIN or CREATE TABLE AS.
    Execute,
    /// PREPARE.
    Prepare,
    /// DEALLOCATE of one name.
    Deallocate,
}

/// A prepared statement's name in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedName {
    /// The name as PostgreSQL reads it: folded to lower case unless quoted, and cut to 63 bytes.
    pub name: String,
    /// Use of the name.
    pub used: NameUse,
    /// Number of the statement in its text, counted from 0.
    pub statement: usize,
}

/// Returns the names in the order of the text.
pub(crate) fn names(tree: &ParseResult) -> Vec<PreparedName> {
    let mut names = Vec::new();
    for (statement, raw) in tree.stmts.iter().enumerate() {
        if let Some((name, used)) = raw.stmt.as_ref().and_then(|node| name_in(node)) {
            names.push(PreparedName { name: name.to_owned(), used, statement });
        }
    }
    names
}

fn name_in(node: &Node) -> Option<(&str, NameUse)> {
    match node.node.as_ref()? {
        NodeEnum::ExecuteStmt(execute) => Some((&execute.name, NameUse::Execute)),
        NodeEnum::PrepareStmt(prepare) => Some((&prepare.name, NameUse::Prepare)),
        NodeEnum::DeallocateStmt(deallocate) if !deallocate.isall => Some((&deallocate.name, NameUse::Deallocate)),
        NodeEnum::ExplainStmt(explain) => executed_in(explain.query.as_deref()?),
        NodeEnum::CreateTableAsStmt(create) => executed_in(create.query.as_deref()?),
        _ => None,
    }
}

/// Returns the EXECUTE below EXPLAIN or CREATE TABLE AS; EXPLAIN CREATE TABLE AS has two levels.
fn executed_in(node: &Node) -> Option<(&str, NameUse)> {
    match node.node.as_ref()? {
        NodeEnum::ExecuteStmt(_) | NodeEnum::CreateTableAsStmt(_) => name_in(node),
        _ => None,
    }
}
