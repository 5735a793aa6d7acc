//! Moves batches between the pipeline and PD: finds the leader, opens a stream, and does so again when the stream breaks or stalls.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use alarm::Alarm;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Streaming;

use super::pipeline::{Next, Pipeline, TimestampResponse};
use super::{Settings, Shared};
use crate::backoff::Backoff;
use crate::figures::add;
use crate::pd::{Leader, Pd, describe, refusal};
use crate::proto::pdpb::{TsoRequest, TsoResponse, pd_client::PdClient};

/// Interval between two checks for a stalled stream.
const LOOK: Duration = Duration::from_millis(100);
/// Time limit of one search for the leader, after which a new one begins.
const SEARCH: Duration = Duration::from_secs(5);

/// Runs until the source is dropped.
pub(super) async fn run(pd: &Pd, settings: Settings, shared: &Shared) {
    tokio::select! {
        () = shared.end.notified() => {}
        () = streams(pd, settings, shared) => {}
    }
}

/// Runs one stream after another.
async fn streams(pd: &Pd, settings: Settings, shared: &Shared) {
    let mut pipeline = Pipeline::new(settings.in_flight);
    loop {
        let mut backoff = Backoff::new("a stream of timestamps", Instant::now() + SEARCH);
        // Streams without any answer, in a row: the pause between two grows, and starts again after an answer.
        loop {
            let Ok(leader) = pd.leader(backoff.deadline).await else { break };
            let before = shared.figures.counts().timestamp_batches;
            let why = stream(pd, &leader, settings, shared, &mut pipeline).await;
            pipeline.lost();
            pd.forget(&leader);
            add(&shared.figures.timestamp_streams_lost, 1);
            tracing::warn!(leader = leader.address, "PD's stream of timestamps was lost: {why}");
            let answered = shared.figures.counts().timestamp_batches > before;
            if answered || backoff.again(why).await.is_err() {
                break;
            }
        }
    }
}

/// Requests timestamps over one stream until it ends; returns the reason.
async fn stream(
    pd: &Pd,
    leader: &Arc<Leader>,
    settings: Settings,
    shared: &Shared,
    pipeline: &mut Pipeline,
) -> Arc<str> {
    // A connection of its own: a stalled one is closed without affecting others, and no large answer to another caller delays it.
    let channel = match pd.channels.own(&leader.address) {
        Ok(channel) => channel,
        Err(error) => return error.to_string().into(),
    };
    // Contains no more than the batches in flight.
    let (questions, mut asked) = mpsc::unbounded_channel::<u32>();
    let header = leader.header();
    let requests = futures_util::stream::poll_fn(move |context| {
        asked.poll_recv(context).map(|count| count.map(|count| TsoRequest { header, count }))
    });
    let mut client = PdClient::new(channel);
    // The server's side of the stream begins with its first answer.
    let mut opening = pin!(async { client.tso(requests.boxed()).await.map(tonic::Response::into_inner) });
    let mut answers: Option<Streaming<TsoResponse>> = None;
    let mut alarm = Alarm::new();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let due = loop {
            match pipeline.next(&shared.dispenser, shared.now()) {
                Next::Send(count) if questions.send(count).is_err() => return "the stream was closed".into(),
                Next::Send(_) => {}
                Next::Wait(due) => break Some(shared.began + due),
                Next::Nothing => break None,
            }
        };
        if due.is_none() {
            alarm.stop();
        }
        let answer = match &mut answers {
            None => tokio::select! {
                biased;
                opened = &mut opening => match opened {
                    Ok(stream) => {
                        answers = Some(stream);
                        continue;
                    }
                    Err(status) => return describe(&status),
                },
                () = shared.wake.notified() => continue,
                () = alarm.until(due.unwrap_or(shared.began)), if due.is_some() => continue,
                _ = look.tick() => None,
            },
            Some(stream) => tokio::select! {
                biased;
                answer = stream.message() => Some(answer),
                () = shared.wake.notified() => continue,
                () = alarm.until(due.unwrap_or(shared.began)), if due.is_some() => continue,
                _ = look.tick() => None,
            },
        };
        match answer {
            Some(Ok(Some(answer))) => {
                if let Err(why) = land(&answer, shared, pipeline, &questions) {
                    return why;
                }
            }
            Some(Ok(None)) => return "PD has closed the stream".into(),
            Some(Err(status)) => return describe(&status),
            None => {
                let waits = pipeline.waits_since().map(|since| shared.now().saturating_sub(since));
                if waits.is_some_and(|waits| waits > settings.stall) {
                    return format!("no answer for {:?}", settings.stall).into();
                }
            }
        }
    }
}

/// Handles an answer: sends the next batch first, then publishes the timestamps.
fn land(
    answer: &TsoResponse,
    shared: &Shared,
    pipeline: &mut Pipeline,
    questions: &mpsc::UnboundedSender<u32>,
) -> Result<(), Arc<str>> {
    refusal(answer)?;
    let at = answer.timestamp.as_ref().ok_or("an answer without a timestamp")?;
    let response = TimestampResponse {
        count: answer.count,
        physical: at.physical,
        logical: at.logical,
        suffix_bits: at.suffix_bits,
    };
    let now = shared.now();
    let landed = pipeline
        .answered(response, shared.dispenser.waiting(), now)
        .inspect_err(|_| add(&shared.figures.timestamps_refused, 1))?;
    if let Next::Send(count) = pipeline.next(&shared.dispenser, now) {
        // If the stream is closed, the loop finds out.
        let _ = questions.send(count);
    }
    shared.count(landed.takers(), landed.round_trip);
    landed.publish(&shared.dispenser);
    Ok(())
}
