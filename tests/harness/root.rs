//! Statements as root on a server of MariaDB or MySQL, over its socket.

use std::path::Path;

use mysql_async::prelude::{ColumnIndex, Queryable as _};

/// Opens a connection.
pub(crate) async fn connect(socket: &Path) -> mysql_async::Result<mysql_async::Conn> {
    let options = mysql_async::OptsBuilder::default().user(Some("root")).socket(Some(socket.display().to_string()));
    mysql_async::Conn::new(options.prefer_socket(true).max_allowed_packet(Some(200 << 20))).await
}

/// Runs statements, one after another, on one connection. Panics when one fails.
pub(crate) async fn run(socket: &Path, statements: &[&str]) {
    let mut connection = connect(socket).await.expect("connect to the server");
    for statement in statements {
        connection.query_drop(*statement).await.unwrap_or_else(|e| panic!("{statement}: {e}"));
    }
}

/// Returns a column of the first row, as text, empty for NULL; None without a row. Panics when the statement fails.
pub(crate) async fn field(socket: &Path, statement: &str, column: impl ColumnIndex) -> Option<String> {
    let mut connection = connect(socket).await.expect("connect to the server");
    let row: Option<mysql_async::Row> =
        connection.query_first(statement).await.unwrap_or_else(|e| panic!("{statement}: {e}"));
    let value = row.map(|mut row| row.take_opt::<Option<String>, _>(column));
    value.map(|value| value.and_then(Result::ok).flatten().unwrap_or_default())
}

/// Returns the first column of the first row, as text. Panics when the statement fails, or there is no row.
pub(crate) async fn value(socket: &Path, statement: &str) -> String {
    field(socket, statement, 0).await.unwrap_or_else(|| panic!("{statement}: no row"))
}
