//! pgpool-II's backends.

use super::translate::Settings;
use crate::plan::Plan;
use crate::report::Report;
use crate::server::address;

/// Most backends, as in pgpool-II.
const MOST: usize = 128;
/// A node's greatest weight in Kingpost, and the primary's.
const HEAVIEST: u32 = 1_000;

struct Backend {
    /// Number of the backend in the file.
    number: String,
    address: String,
    weight: Option<f64>,
    primary: bool,
}

/// Reads the nodes and their weights. Returns true if reads can go to others than the primary.
pub(super) fn read(report: &mut Report<'_>, plan: &mut Plan, settings: &Settings) -> bool {
    let mut numbers: Vec<String> = settings.numbers("backend_hostname");
    numbers.sort_by_key(|number| number.parse::<u64>().unwrap_or(u64::MAX));
    if numbers.len() > MOST {
        report.insist("backend_hostname", format!("found {} backends, expected at most {MOST}", numbers.len()));
        numbers.truncate(MOST);
    }
    let backends: Vec<Backend> =
        numbers.into_iter().filter_map(|number| Backend::read(report, settings, number)).collect();
    if backends.is_empty() {
        report.insist("backend_hostname0", "there is no backend");
    }
    plan.lead(vec![(String::new(), backends.iter().map(|backend| backend.address.clone()).collect())], true);
    let balances = settings.flag(report, "load_balance_mode", true) && backends.len() > 1;
    if balances {
        weights(report, plan, &backends);
    }
    balances
}

impl Backend {
    fn read(report: &mut Report<'_>, settings: &Settings, number: String) -> Option<Backend> {
        let (host, port) = (format!("backend_hostname{number}"), format!("backend_port{number}"));
        let name = settings.get(&host).unwrap_or_default();
        let port = settings.get(&port).unwrap_or("5432");
        let socket = if name.is_empty() { "/tmp" } else { "" };
        let address = match address(name, port, socket) {
            Ok(address) => address,
            Err(why) => {
                report.problem(&host, why);
                return None;
            }
        };
        let weight = format!("backend_weight{number}");
        let weight = settings.get(&weight).and_then(|found| {
            let number = found.parse::<f64>().ok().filter(|number| number.is_finite() && (0.0..=1e6).contains(number));
            if number.is_none() {
                report.problem(&weight, format!("found {found:?}, expected a number from 0 to 1000000"));
            }
            number
        });
        let flags = settings.get(&format!("backend_flag{number}")).unwrap_or_default();
        let primary = flags.split('|').any(|flag| flag.trim().eq_ignore_ascii_case("ALWAYS_PRIMARY"));
        Some(Backend { number, address, weight, primary })
    }
}

/// Writes the weights as whole numbers, and the primary's.
fn weights(report: &mut Report<'_>, plan: &mut Plan, backends: &[Backend]) {
    if let Some(backend) = backends.iter().find(|backend| backend.weight.is_none()) {
        let name = format!("backend_weight{}", backend.number);
        return report
            .problem(&name, "it is missing: without it no read goes to the backend, and the others share them");
    }
    let shares: Vec<f64> = backends.iter().filter_map(|backend| backend.weight).collect();
    let Some(weights) = whole(&shares) else {
        return report.problem(
            "backend_weight0",
            format!("shares such as {shares:?} are no whole numbers from 0 to {HEAVIEST}"),
        );
    };
    let named = backends.iter().position(|backend| backend.primary).unwrap_or(0);
    plan.about_routing = "The primary's weight among the nodes that answer reads; 0: it does so where no replica can.";
    plan.routing.push(("primary_weight", weights.get(named).unwrap_or(&1).to_string()));
    if weights.iter().any(|weight| *weight != 1) {
        for (backend, weight) in backends.iter().zip(weights) {
            plan.nodes.insert(backend.address.clone(), vec![("weight", weight.to_string())]);
        }
    }
}

/// Returns the smallest whole numbers in the same proportion; None: they exceed Kingpost's limit.
fn whole(shares: &[f64]) -> Option<Vec<u32>> {
    let exact = |factor: u32| -> Option<Vec<u32>> {
        let scaled: Vec<f64> = shares.iter().map(|share| share * f64::from(factor)).collect();
        scaled.iter().all(|share| (share - share.round()).abs() < 1e-6).then_some(())?;
        scaled.iter().map(|share| (share.round() <= 1e6).then(|| share.round() as u32)).collect()
    };
    let numbers = (1..=HEAVIEST).find_map(exact)?;
    let divisor = numbers.iter().copied().fold(0, greatest_common);
    let numbers: Vec<u32> = numbers.iter().map(|number| number.checked_div(divisor).unwrap_or(0)).collect();
    numbers.iter().all(|number| *number <= HEAVIEST).then_some(numbers)
}

fn greatest_common(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn shares_become_whole_numbers() {
        for (shares, expected) in [
            (&[1.0, 1.0][..], Some(vec![1, 1])),
            (&[0.0, 1.0], Some(vec![0, 1])),
            (&[0.0, 0.0], Some(vec![0, 0])),
            (&[0.5, 0.25], Some(vec![2, 1])),
            (&[0.3, 0.7], Some(vec![3, 7])),
            (&[2.0, 4.0, 6.0], Some(vec![1, 2, 3])),
            (&[1.0, 5000.0], None),
            (&[0.123_456_7, 1.0], None),
        ] {
            assert_eq!(whole(shares), expected, "{shares:?}");
        }
    }
}
