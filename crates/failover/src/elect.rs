//! Execution of the [engine](super::engine)'s steps, for every kind of servers: orders to relays, through an adapter, and the wait for enough of them.

use std::time::Duration;

use ::relay::Order;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::ballot::{NotNoted, TooFew};
use super::engine::{Engine, NotAgreed, Plan, Promoted, ServerKind, Step, Wish};
use super::failover_run::Guard;
use super::plan::{Candidate, RelaySeen, Survey};
use process::Failure;

/// Time to wait for further relays once enough have carried out an order.
const OTHERS: Duration = Duration::from_secs(2);

/// Access to servers of one kind, and the words for them.
pub(super) trait Adapter {
    type Kind: ServerKind;
    /// The reason why a candidate is given up.
    type Setback;

    /// Number that distinguishes this run's term from those of runs that begin at the same time.
    fn run(&self) -> u16;
    /// Marks the end of a step, for tests.
    fn mark(&self, name: &str);
    /// Has a relay carry out an order.
    async fn order(&self, relay: &str, order: Order) -> Result<Relay<Self>, String>;
    /// Surveys all hosts again, if the kind does that.
    async fn survey_again(&self, before: &Survey<Self::Kind>) -> Survey<Self::Kind>;
    /// Notes the term on every standby that answers; returns the names of those that carry the note. `old` is the replaced primary.
    async fn note(&self, now: &Survey<Self::Kind>, term: u64, old: Option<&str>) -> Vec<String>;
    /// Has the candidates receive all that the fenced relays have; returns the one to choose.
    async fn catch_up(&self, candidates: &[Candidate], target: &Target<Self>) -> Result<String, Self::Setback>;
    /// Promotes a node; returns its timeline.
    async fn promote(&self, node: &str, engine: &Engine<Self::Kind>) -> Result<u32, NotPromoted<Self::Setback>>;
    /// Returns the setback of a choice that too few relays took.
    fn not_chosen(&self, node: &str, not: NotAgreed, refused: &[String]) -> Self::Setback;
    /// Returns the failure of a run whose last candidate was given up.
    fn nothing_promoted(&self, setbacks: Vec<(String, Self::Setback)>) -> Failure;
    /// Prints a piece of news.
    fn tell(&self, news: News<'_, Self::Kind>);
    /// Words the reason of a run's end.
    fn failure(&self, stop: Stop<'_, Self::Kind>) -> Failure;
}

type Relay<A> = <<A as Adapter>::Kind as ServerKind>::Relay;
type Target<A> = <<A as Adapter>::Kind as ServerKind>::Target;

/// A piece of news of a run.
pub(super) enum News<'a, K: ServerKind> {
    /// The relay gets no order: it follows the chosen node already.
    There {
        relay: &'a str,
    },
    Fenced {
        relay: &'a str,
        term: u64,
        order: &'a Order,
        standing: &'a K::Relay,
    },
    NotFenced {
        relay: &'a str,
        why: &'a str,
    },
    /// Enough relays are fenced, or all that can be had. `needed` is the number without any loss.
    EnoughFenced {
        engine: &'a Engine<K>,
        needed: usize,
    },
    /// Another run has promoted a node.
    PromotedMeanwhile {
        node: &'a str,
    },
    /// The candidates are decided.
    Counted {
        engine: &'a Engine<K>,
    },
    Withdrawn {
        node: &'a str,
    },
    NotChosen {
        relay: &'a str,
        why: &'a str,
    },
    Chosen {
        node: &'a str,
        term: u64,
    },
}

/// The reason why a run ends without a promotion.
pub(super) enum Stop<'a, K: ServerKind> {
    Fenced { too_few: TooFew, relays: usize, refused: &'a [String] },
    Refused(K::Refusal),
    NotNoted(NotNoted),
    NotWithdrawn { relay: &'a str, node: &'a str, why: &'a str },
    Overtaken { node: &'a str, term: u64, not: NotAgreed },
}

/// The reason why a node is not the primary.
pub(super) enum NotPromoted<S> {
    /// The node was surely not promoted: another candidate may be.
    Not(S),
    /// The node may have been promoted: another one would be a second primary.
    Unknown(Failure),
}

/// The end of a run that has promoted a node.
pub(super) struct Elected<K: ServerKind> {
    pub(super) promoted: Promoted,
    pub(super) engine: Engine<K>,
}

/// Runs all steps from the fence to the promotion. `old` is the replaced primary, if known.
///
/// # Errors
/// No node was promoted, or may have been.
pub(super) async fn elect<A: Adapter>(
    adapter: &A,
    survey: &Survey<A::Kind>,
    plan: Plan,
    wish: &Wish<'_>,
    old: Option<&str>,
    guard: &impl Guard,
) -> Result<Elected<A::Kind>, Failure> {
    let mut engine = Engine::new(plan, survey, adapter.run());
    let mut setbacks = Vec::new();
    let mut timeline = 0;
    while engine.step != Step::Over {
        let node = engine.node.clone().unwrap_or_default();
        let setback = match engine.step {
            Step::Fence => {
                fence(adapter, survey, &mut engine, wish).await?;
                adapter.mark("fenced");
                continue;
            }
            Step::Count => {
                let now = adapter.survey_again(survey).await;
                match engine.counted(now, wish).map_err(|why| adapter.failure(Stop::Refused(why)))? {
                    Some(promoted) => {
                        adapter.tell(News::PromotedMeanwhile { node: &promoted.node });
                        return Ok(Elected { promoted, engine });
                    }
                    None => adapter.tell(News::Counted { engine: &engine }),
                }
                continue;
            }
            Step::Note => {
                let noted = adapter.note(&engine.now, engine.term(), old).await;
                engine.noted(&noted, wish.force).map_err(|why| adapter.failure(Stop::NotNoted(why)))?;
                continue;
            }
            Step::Withdraw => {
                withdraw(adapter, &engine).await?;
                engine.withdrawn();
                continue;
            }
            Step::CatchUp => {
                if setbacks.is_empty() {
                    adapter.mark("noted");
                }
                let target = engine.target().map_err(|why| adapter.failure(Stop::Refused(why)))?;
                let found = match (&target, engine.tried()) {
                    (Some(target), tried) => adapter.catch_up(tried, target).await,
                    (None, tried) => Ok(tried.first().map(|candidate| candidate.name.clone()).unwrap_or_default()),
                };
                match found {
                    Ok(node) => {
                        adapter.mark("caught-up");
                        let guarded = guard.before_election().await;
                        guarded.map_err(|why| Failure::runtime(format!("{node} is not elected: {why}")))?;
                        engine.caught_up(node);
                        continue;
                    }
                    Err(why) => why,
                }
            }
            Step::Choose => {
                let (agree, refused) = choose(adapter, &engine).await;
                match engine.chose(agree) {
                    Ok(()) => {
                        adapter.tell(News::Chosen { node: &node, term: engine.term() });
                        adapter.mark("elected");
                        continue;
                    }
                    Err(not) => adapter.not_chosen(&node, not, &refused),
                }
            }
            Step::Look => {
                look(adapter, &mut engine, &node).await?;
                continue;
            }
            Step::Promote => {
                let guarded = guard.before_promotion().await;
                guarded.map_err(|why| Failure::runtime(format!("{node} is not promoted: {why}")))?;
                adapter.mark("promoting");
                match adapter.promote(&node, &engine).await {
                    Ok(of) => {
                        timeline = of;
                        engine.promoted();
                        adapter.mark("promoted");
                        continue;
                    }
                    Err(NotPromoted::Not(why)) => why,
                    Err(NotPromoted::Unknown(failure)) => return Err(failure),
                }
            }
            Step::Over => break,
        };
        let tried = engine.tried().first().map(|candidate| candidate.name.clone()).unwrap_or_default();
        setbacks.push((tried, setback));
        if !engine.set_back() {
            return Err(adapter.nothing_promoted(setbacks));
        }
    }
    let node = engine.node.clone().unwrap_or_default();
    Ok(Elected { promoted: Promoted { node, timeline, old: old.map(str::to_owned) }, engine })
}

/// Has enough relays promise to the run's term.
async fn fence<A: Adapter>(
    adapter: &A,
    survey: &Survey<A::Kind>,
    engine: &mut Engine<A::Kind>,
    wish: &Wish<'_>,
) -> Result<(), Failure> {
    let needed = survey.needed().saturating_sub(engine.plan.there.len());
    let term = engine.term();
    for relay in &engine.plan.there {
        adapter.tell(News::There { relay });
    }
    let asked: Vec<_> = survey.relays.iter().filter_map(|relay| Some((relay, engine.fence(relay)?))).collect();
    let mut waiting = asked.iter().filter(|(relay, _)| relay.standing.is_ok()).count();
    let mut orders: FuturesUnordered<_> = asked
        .into_iter()
        .map(|(relay, order)| async move { (relay, adapter.order(&relay.name, order.clone()).await, order) })
        .collect();
    let (mut relays, mut refused) = (Vec::<(RelaySeen<A::Kind>, Relay<A>)>::new(), Vec::new());
    // A relay that did not answer before is waited for only while there are too few without it.
    while waiting > 0 || relays.len() < needed {
        let next = orders.next();
        let next = match relays.len() < needed {
            true => next.await,
            // A relay that has fallen silent since the survey keeps only what it received by then, and acknowledges nothing more.
            false => tokio::time::timeout(OTHERS, next).await.unwrap_or_default(),
        };
        let Some((relay, answer, order)) = next else { break };
        waiting -= usize::from(relay.standing.is_ok());
        match answer {
            Ok(standing) => {
                adapter.tell(News::Fenced { relay: &relay.name, term, order: &order, standing: &standing });
                relays.push((relay.clone(), standing));
            }
            Err(why) => {
                adapter.tell(News::NotFenced { relay: &relay.name, why: &why });
                refused.push(format!("  {}: {why}", relay.name));
            }
        }
    }
    drop(orders);
    // In the order of the configuration, whoever answered first.
    relays.sort_by_key(|(relay, _)| survey.relays.iter().position(|known| known.name == relay.name));
    let all = survey.relays.len();
    engine
        .fenced(survey, relays, wish.accept_loss)
        .map_err(|too_few| adapter.failure(Stop::Fenced { too_few, relays: all, refused: &refused }))?;
    engine.target().map_err(|why| adapter.failure(Stop::Refused(why)))?;
    adapter.tell(News::EnoughFenced { engine, needed: survey.needed() });
    Ok(())
}

/// Withdraws a node that an earlier run has elected.
async fn withdraw<A: Adapter>(adapter: &A, engine: &Engine<A::Kind>) -> Result<(), Failure> {
    let Some((relays, order)) = engine.withdrawal() else { return Ok(()) };
    let each = relays.map(|relay| async { (&relay.name, adapter.order(&relay.name, order.clone()).await) });
    let node = engine.election.withdraw.as_deref().unwrap_or_default();
    for (relay, result) in join_all(each).await {
        if let Err(why) = result {
            return Err(adapter.failure(Stop::NotWithdrawn { relay, node, why: &why }));
        }
    }
    adapter.tell(News::Withdrawn { node });
    Ok(())
}

/// Records the choice of the node on the relays, before the promotion. Returns the number of relays that agree, and the refusals of others.
async fn choose<A: Adapter>(adapter: &A, engine: &Engine<A::Kind>) -> (usize, Vec<String>) {
    let each = engine.ballot.relays.iter().map(|(relay, then)| async {
        for order in engine.choice().into_iter().chain(engine.lead(then)) {
            if let Err(why) = adapter.order(&relay.name, order).await {
                return (&relay.name, Err(why));
            }
        }
        (&relay.name, Ok(()))
    });
    let mut orders: FuturesUnordered<_> = each.collect();
    let (mut agree, mut refused) = (0, Vec::new());
    loop {
        let next = match engine.ballot.elects(agree) {
            false => orders.next().await,
            true => tokio::time::timeout(OTHERS, orders.next()).await.unwrap_or_default(),
        };
        match next {
            Some((_, Ok(()))) => agree += 1,
            Some((relay, Err(why))) => {
                adapter.tell(News::NotChosen { relay, why: &why });
                refused.push(format!("  {relay}: {why}"));
            }
            None => break,
        }
    }
    (agree, refused)
}

/// Checks that the relays still hold to the run's term.
async fn look<A: Adapter>(adapter: &A, engine: &mut Engine<A::Kind>, node: &str) -> Result<(), Failure> {
    let term = engine.term();
    let thens: Vec<Relay<A>> = engine.ballot.relays.iter().map(|(_, then)| then.clone()).collect();
    let each = engine.ballot.relays.iter().map(|(relay, _)| adapter.order(&relay.name, Order::Look));
    let answers = join_all(each).await;
    let both = thens.iter().zip(&answers).filter_map(|(then, now)| Some((then, now.as_ref().ok()?)));
    engine.looked(both).map_err(|not| adapter.failure(Stop::Overtaken { node, term, not }))
}
