//! Display while the cluster runs: a table redrawn in place on a terminal, changes as lines otherwise.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::relay::LocalRelay;
use super::status::{self, NodeStatus, Rate, Rates};
use super::stop::Stop;
use daemon::{Running, Traffic};
use process::terminal;

/// Interval between two looks.
const PACE: Duration = Duration::from_secs(1);

/// Shows the PostgreSQL nodes, and the traffic through the proxy, until a signal comes.
pub(super) async fn until_stopped(nodes: &[(String, u16)], running: &Running, relay: Option<&LocalRelay>, stop: &Stop) {
    let look = async || {
        let mut observed = status::observe(nodes).await;
        observed.extend(relay.map(LocalRelay::status));
        status::fill_lag(&mut observed);
        observed
    };
    show(look, || Some(running.traffic()), stop).await;
}

/// Shows the nodes that `look` returns until a signal comes. `traffic`: that of the proxy, if there is one.
pub(super) async fn show(look: impl AsyncFn() -> Vec<NodeStatus>, traffic: impl Fn() -> Option<Traffic>, stop: &Stop) {
    let terminal = terminal::is_terminal();
    let mut rates = Rates::default();
    let mut roles = HashMap::new();
    let mut drawn = 0;
    if !terminal {
        terminal::line("ready");
    }
    loop {
        let observed = tokio::select! {
            observed = look() => observed,
            () = stop.wanted() => break,
        };
        let traffic = traffic();
        let rate = rates.next(Instant::now(), &observed, traffic.unwrap_or_default());
        if terminal {
            let text = picture(&observed, &rate, traffic);
            terminal::raw(&redraw(&text, drawn));
            drawn = text.lines().count();
        } else {
            for change in changes(&mut roles, &observed) {
                terminal::line(change);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PACE) => {}
            () = stop.wanted() => break,
        }
    }
    if terminal {
        terminal::line("");
    }
}

fn picture(nodes: &[NodeStatus], rate: &Rate, traffic: Option<Traffic>) -> String {
    let queries = rate.queries.map_or("-".into(), |queries| format!("{queries:.0}"));
    let table = status::table(nodes, Some(rate));
    let traffic = traffic.map_or(String::new(), |traffic| {
        format!("clients {} · statements {} · {queries}/s · ", traffic.clients, traffic.queries)
    });
    format!("{table}\n{traffic}Ctrl-C stops\n")
}

/// Draws a text over the one drawn before. Lines do not wrap, or the count of lines would be wrong.
fn redraw(text: &str, drawn: usize) -> String {
    let mut output = String::from("\x1b[?7l");
    if drawn > 0 {
        output.push_str(&format!("\x1b[{drawn}A\r"));
    }
    for line in text.lines() {
        output.push_str("\x1b[2K");
        output.push_str(line);
        output.push('\n');
    }
    output.push_str("\x1b[J\x1b[?7h");
    output
}

/// Returns one line for each node whose role has changed.
fn changes(roles: &mut HashMap<String, &'static str>, nodes: &[NodeStatus]) -> Vec<String> {
    let mut lines = Vec::new();
    for node in nodes {
        match roles.insert(node.name.clone(), node.role) {
            Some(before) if before != node.role => {
                let why = node.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
                lines.push(format!("{} ({}) was {before}, is {}{why}", node.name, node.address, node.role));
            }
            None => lines.push(format!("{} ({}) is {}", node.name, node.address, node.role)),
            Some(_) => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(role: &'static str) -> NodeStatus {
        let error = (role == "down").then(|| "refused".into());
        NodeStatus { role, error, ..NodeStatus::down("node1".into(), "127.0.0.1:5".into()) }
    }

    #[test]
    fn only_changes_are_lines() {
        let mut roles = HashMap::new();
        for (role, expected) in [
            ("replica", vec!["node1 (127.0.0.1:5) is replica"]),
            ("replica", vec![]),
            ("primary", vec!["node1 (127.0.0.1:5) was replica, is primary"]),
            ("down", vec!["node1 (127.0.0.1:5) was primary, is down: refused"]),
        ] {
            assert_eq!(changes(&mut roles, &[node(role)]), expected, "{role}");
        }
    }

    #[test]
    fn redrawing_goes_back_over_what_was_drawn() {
        assert_eq!(redraw("a\n", 0), "\x1b[?7l\x1b[2Ka\n\x1b[J\x1b[?7h");
        assert_eq!(redraw("a\n", 3), "\x1b[?7l\x1b[3A\r\x1b[2Ka\n\x1b[J\x1b[?7h");
    }
}
