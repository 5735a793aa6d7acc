//! Commands answered by the proxy itself: DEALLOCATE, and its own parameters.

use pg_query::NodeEnum;
use pg_query::protobuf::{ParseResult, VariableSetKind, VariableSetStmt, a_const::Val};

use crate::class::Local;
use crate::hint::value_of;
use crate::statement::own_parameter;

/// Returns the command, if the text is exactly one statement of this kind.
pub(crate) fn command(tree: &ParseResult) -> Option<Local> {
    let [raw] = tree.stmts.as_slice() else { return None };
    match raw.stmt.as_ref()?.node.as_ref()? {
        NodeEnum::DeallocateStmt(deallocate) if deallocate.isall => Some(Local::DeallocateAll),
        NodeEnum::DeallocateStmt(deallocate) => Some(Local::Deallocate(deallocate.name.clone())),
        NodeEnum::VariableShowStmt(show) => Some(Local::Show(own_parameter(&show.name)?.to_ascii_lowercase())),
        NodeEnum::VariableSetStmt(set) => {
            let name = own_parameter(&set.name)?.to_ascii_lowercase();
            Some(parameter(&name, set).unwrap_or_else(Local::Invalid))
        }
        _ => None,
    }
}

fn parameter(name: &str, set: &VariableSetStmt) -> Result<Local, String> {
    if !matches!(name, "route" | "consistency" | "token" | "transaction_reads") {
        return Err(format!(
            "unrecognized parameter \"kingpost.{name}\": there are kingpost.route, kingpost.consistency, kingpost.token and kingpost.transaction_reads"
        ));
    }
    if set.is_local {
        return Err(format!("SET LOCAL kingpost.{name} is not supported: use SET kingpost.{name}"));
    }
    let value = match set.kind() {
        VariableSetKind::VarSetDefault | VariableSetKind::VarReset => None,
        VariableSetKind::VarSetValue => match set.args.as_slice() {
            [arg] => match &arg.node {
                Some(NodeEnum::AConst(constant)) => match &constant.val {
                    Some(Val::Sval(value)) => Some(value.sval.to_ascii_lowercase()),
                    _ => return Err(format!("kingpost.{name} takes a word, not a number")),
                },
                _ => return Err(format!("kingpost.{name} takes a word")),
            },
            _ => return Err(format!("kingpost.{name} takes one value")),
        },
        _ => return Err(format!("kingpost.{name} can be SET, SET TO DEFAULT, RESET and SHOWn")),
    };
    match (name, value) {
        ("consistency", value) => Ok(Local::Consistency(value)),
        ("token", value) => Ok(Local::Token(value)),
        ("transaction_reads", value) => Ok(Local::TransactionReads(value)),
        (_, None) => Ok(Local::Route(None)),
        (_, Some(value)) => match value_of(&value) {
            Some(hint) => Ok(Local::Route(Some(hint))),
            None => Err(format!(
                "invalid value for parameter \"kingpost.route\": \"{value}\"; use primary, replica or auto"
            )),
        },
    }
}
