//! Programs of the user for tasks that need access to the server's machine.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Most characters shown of a program's output.
const SHOWN: usize = 2000;

/// A program, and its environment.
#[derive(Default)]
pub(super) struct Hook<'a> {
    /// Path and arguments.
    pub(super) program: &'a [String],
    /// `KINGPOST_NODE`: the server's name.
    pub(super) node: &'a str,
    /// `KINGPOST_ADDRESS`: the server's address.
    pub(super) address: &'a str,
    /// `KINGPOST_PRIMARY` and `KINGPOST_PRIMARY_ADDRESS`.
    pub(super) primary: Option<(&'a str, &'a str)>,
    /// `KINGPOST_UPSTREAM`: the address of its new upstream.
    pub(super) upstream: Option<&'a str>,
    /// `KINGPOST_TIMELINE`: the primary's timeline, as in names of WAL files.
    pub(super) timeline: Option<u32>,
    /// Further variables.
    pub(super) more: &'a [(&'a str, String)],
    /// True to withhold the settings and the token in this process's own environment, which may be secrets.
    pub(super) withholds: bool,
}

/// Runs the program to its end, within a limit, after which it is killed; returns the end of its output.
///
/// # Errors
/// It cannot be started, takes too long, or ends with another code than 0; with the end of its output.
pub(super) async fn run(hook: &Hook<'_>, limit: Duration) -> Result<String, String> {
    let (program, arguments) = hook.program.split_first().ok_or("no program is configured")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    for (name, _) in std::env::vars_os().filter(|_| hook.withholds) {
        if name.to_string_lossy().starts_with("KINGPOST__") || name == "KINGPOST_REGISTRY_TOKEN" {
            command.env_remove(name);
        }
    }
    command.env("KINGPOST_NODE", hook.node).env("KINGPOST_ADDRESS", hook.address);
    if let Some((name, address)) = hook.primary {
        command.env("KINGPOST_PRIMARY", name).env("KINGPOST_PRIMARY_ADDRESS", address);
    }
    if let Some(upstream) = hook.upstream {
        command.env("KINGPOST_UPSTREAM", upstream);
    }
    if let Some(timeline) = hook.timeline {
        command.env("KINGPOST_TIMELINE", format!("{timeline:08X}"));
    }
    command.envs(hook.more.iter().map(|(name, value)| (name, value)));
    let mut child = command.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
    // Read beside the wait: a program that fills a pipe must not block, and one that leaves the pipe open to a server that it has started must not be
    // waited for.
    let (mut text, mut more) = (Vec::new(), Vec::new());
    let status = {
        let (out, errors) = (child.stdout.take(), child.stderr.take());
        let reading = async {
            tokio::join!(drain(out, &mut text), drain(errors, &mut more));
            std::future::pending::<()>().await;
        };
        let ending = async {
            let status = tokio::time::timeout(limit, child.wait()).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            status
        };
        tokio::select! {
            status = ending => status,
            () = reading => return Err(format!("{program} cannot be read")),
        }
    };
    let status = status
        .map_err(|_| format!("{program} took longer than {limit:?}"))?
        .map_err(|error| format!("cannot wait for {program}: {error}"))?;
    text.extend(more);
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN)..]).trim().to_owned();
    if status.success() {
        return Ok(text);
    }
    Err(format!("{program} ended with {status}: {text}"))
}

/// Reads to the end, and keeps only the last bytes.
async fn drain(source: Option<impl tokio::io::AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut source) = source else { return };
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = source.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        let excess = kept.len().saturating_sub(SHOWN);
        kept.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn programs_are_told_and_heard() {
        let shell = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned);
        let hook = |program: &'static [String]| Hook {
            program,
            node: "db1",
            address: "h:1",
            primary: Some(("db2", "h:2")),
            upstream: Some("r:3"),
            timeline: Some(27),
            ..Hook::default()
        };
        let told = "test \"$KINGPOST_NODE $KINGPOST_ADDRESS $KINGPOST_PRIMARY $KINGPOST_PRIMARY_ADDRESS \
                    $KINGPOST_UPSTREAM $KINGPOST_TIMELINE\" = 'db1 h:1 db2 h:2 r:3 0000001B'";
        run(&hook(shell(told).to_vec().leak()), Duration::from_secs(10)).await.unwrap();
        let failed = run(&hook(shell("echo because; exit 3").to_vec().leak()), Duration::from_secs(10)).await;
        assert!(failed.as_ref().unwrap_err().contains("because"), "{failed:?}");
        assert!(run(&hook(&[]), Duration::from_secs(10)).await.is_err());
        let slow = run(&hook(shell("sleep 60").to_vec().leak()), Duration::from_millis(50)).await;
        assert!(slow.unwrap_err().contains("longer"));
    }
}
