//! Limits of bytes by the rules of a policy.
//!
//! State of a body: what its request is judged by, the length of a piece, and what it waits for.
//!
//! - **Idle.** A piece is asked for. If the rule grants it, the bytes pass.
//! - **Waiting** in the queue of the rule, for a piece. The wait ends with the permits, or without.
//! - **Sleeping**, because the queue is full, or the rule denies for another reason than its
//!   limits: a penalty, or a table without room for the key. At its end a piece is asked for again.
//!
//! Invariant: bytes pass only by a grant of the policy that is in force when the piece is asked
//! for, for at least as many permits.

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::sync::Arc;

use http::{Extensions, HeaderMap, Method, Uri};
use portcullis_core::{Denied, Retry};
use portcullis_policy::{Decision, Kind, Limit, Outcome, Policy, QueuedDecision, Sleep};

use super::{BodyLimitError, Flow, LimitBytes, piece};
use crate::decide::{ByPolicy, Decide, Finder, PolicyHandle};
use crate::denial::{Denial, DenialSettings};
use crate::head::RequestHead;

/// The wait before a piece is asked for again, if the denial tells no time.
const UNKNOWN: Duration = Duration::from_millis(100);

/// The shortest wait before a piece is asked for again.
const SHORTEST: Duration = Duration::from_millis(1);

/// What the rules are asked about: a request without its body.
struct Asked {
    kind: Kind,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    extensions: Extensions,
    address: Option<core::net::IpAddr>,
    finder: Option<Finder>,
}

impl Asked {
    fn of(kind: Kind, finder: Option<&Finder>, head: &RequestHead<'_>) -> Self {
        Self {
            kind,
            method: head.method.clone(),
            uri: head.uri.clone(),
            headers: head.headers.clone(),
            // Only the functions of the program read them.
            extensions: match finder {
                Some(_) => head.extensions.clone(),
                None => Extensions::new(),
            },
            address: head.address,
            finder: finder.cloned(),
        }
    }

    fn with_request<T>(
        &self,
        cost: u32,
        ask: impl FnOnce(&portcullis_policy::Request<'_>) -> T,
    ) -> T {
        let head = RequestHead {
            method: &self.method,
            uri: &self.uri,
            headers: &self.headers,
            extensions: &self.extensions,
            address: self.address,
        };
        head.with_request(self.kind, self.finder.as_ref(), cost, ask)
    }
}

/// The answer to a request for a piece.
enum Answer {
    Granted,
    /// The limits can never grant more than this.
    AtMost(u32),
    /// Denied: to be asked again after this time.
    After(Duration),
    Never(Option<Box<str>>),
}

impl Answer {
    fn of(policy: &Policy, bytes: u32, decision: &QueuedDecision<'_>) -> Self {
        if decision.is_allowed() {
            return Self::Granted;
        }
        let never = || Self::Never(decision.rule().map(|rule| rule.name().into()));
        match decision.outcome() {
            Outcome::Denied {
                denied: Denied::ExceedsCapacity { capacity, .. },
                ..
            } if bytes > 1 && capacity > 0 => Self::AtMost(capacity.min(bytes - 1)),
            Outcome::Denied { .. } => match decision.retry() {
                None | Some(Retry::Never) => never(),
                Some(Retry::OnRelease) => Self::After(UNKNOWN),
                Some(retry) => {
                    let wait = retry.wait_from(policy.now()).unwrap_or(UNKNOWN);
                    Self::After(wait.max(SHORTEST))
                }
            },
            _ => never(),
        }
    }
}

/// What a body waits for.
enum Wait {
    /// Nothing: a piece is asked for next.
    None,
    Queue(Pin<Box<dyn Future<Output = Answer> + Send>>),
    Time(Sleep),
}

/// The permits for the bytes of one body, from the rules of a policy.
///
/// Each piece is granted by the policy that is then in force. A piece that has to wait allocates.
pub struct PolicyFlow<P = Arc<Policy>> {
    /// Where the policy is read whose rules limit the body, now and later.
    policy: P,
    asked: Arc<Asked>,
    piece: u32,
    wait: Wait,
    /// For how many bytes it waits.
    bytes: u32,
}

impl<P: PolicyHandle> PolicyFlow<P> {
    /// Asks for `bytes` without waiting. Otherwise returns what to wait for.
    fn ask(&self, context: &mut Context<'_>) -> Result<Answer, Wait> {
        let policy = P::share(&self.policy.load());
        let acquire = self.asked.with_request(self.bytes, |request| {
            let acquiring = pin!(policy.acquire(request));
            if acquiring.waits_for().is_some() {
                return None;
            }
            match acquiring.poll(context) {
                Poll::Ready(decision) => Some(Answer::of(&policy, self.bytes, &decision)),
                Poll::Pending => None,
            }
        });
        let (bytes, asked) = (self.bytes, Arc::clone(&self.asked));
        acquire.ok_or_else(|| {
            Wait::Queue(Box::pin(async move {
                let acquiring = asked.with_request(bytes, |request| policy.acquire(request));
                let decision = acquiring.await;
                Answer::of(&policy, bytes, &decision)
            }))
        })
    }
}

impl<P: PolicyHandle> Flow for PolicyFlow<P> {
    fn poll_permits(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        most: u32,
    ) -> Poll<Result<u32, BodyLimitError>> {
        let this = &mut *self;
        if let Wait::None = this.wait {
            this.bytes = this.piece.min(most);
        }
        loop {
            let answer = match &mut this.wait {
                Wait::None => match this.ask(context) {
                    Ok(answer) => answer,
                    Err(wait) => {
                        this.wait = wait;
                        continue;
                    }
                },
                Wait::Queue(wait) => ready!(wait.as_mut().poll(context)),
                Wait::Time(sleep) => {
                    ready!(Pin::new(sleep).poll(context));
                    this.wait = Wait::None;
                    continue;
                }
            };
            this.wait = Wait::None;
            match answer {
                Answer::Granted => return Poll::Ready(Ok(this.bytes)),
                Answer::AtMost(capacity) => {
                    this.piece = capacity;
                    this.bytes = capacity;
                }
                Answer::After(time) => {
                    let policy = this.policy.load();
                    let at = policy.now().saturating_add(time);
                    this.wait = Wait::Time(policy.sleep_until(at));
                }
                Answer::Never(rule) => return Poll::Ready(Err(BodyLimitError::Never(rule))),
            }
        }
    }
}

shows!([P] PolicyFlow<P>, "PolicyFlow",
    self: "kind" => self.asked.kind, "waits" => !matches!(self.wait, Wait::None));

/// Asks the rules about a body, without taking. Returns the length of its pieces; `None` if it is
/// not limited. `deny` makes the denial if no wait helps.
fn piece_of(
    policy: &Policy,
    kind: Kind,
    finder: Option<&Finder>,
    head: &RequestHead<'_>,
    deny: impl FnOnce(&Decision<'_>) -> Denial,
) -> Result<Option<u32>, Denial> {
    head.with_request(kind, finder, 0, |request| {
        let acquiring = policy.acquire(request);
        let of = |decision: &Decision<'_>| {
            let capacities = decision.limits().iter().map(Limit::capacity);
            capacities.min().map(piece)
        };
        if let Some(decision) = acquiring.waits_for() {
            return Ok(of(decision));
        }
        let mut context = Context::from_waker(core::task::Waker::noop());
        let Poll::Ready(decision) = pin!(acquiring).poll(&mut context) else {
            unreachable!("it does not wait")
        };
        match decision.outcome() {
            Outcome::NoRule | Outcome::Exempt => Ok(None),
            Outcome::Allowed => Ok(of(&decision)),
            Outcome::Denied { .. } if decision.retry() != Some(Retry::Never) => Ok(of(&decision)),
            _ => Err(deny(&decision)),
        }
    })
}

impl<P: PolicyHandle> PolicyFlow<P> {
    fn new(policy: P, asked: Asked, piece: u32) -> Self {
        Self {
            policy,
            asked: Arc::new(asked),
            piece,
            wait: Wait::None,
            bytes: 0,
        }
    }
}

/// Limits by the rules of the kinds [`Ingress`](Kind::Ingress) and [`Egress`](Kind::Egress), one
/// permit for each byte. The layer sets the kind: [`ByPolicy::kind`] has no effect.
///
/// Bodies wait in the queues of the rules. Without [`Limit::queue`], the limits of such rules have
/// a queue of any length. If a queue is full, a body asks again later, out of turn. Permits at once
/// ([`Limit::at_once`]) return as soon as a piece passes.
///
/// Each piece is granted by the policy that is then in force, so a change of a `LivePolicy` applies
/// to bodies that are under way. A body for which there was no rule when its request arrived stays
/// without a limit.
impl<P: PolicyHandle> LimitBytes for ByPolicy<P> {
    type Flow = PolicyFlow<P>;

    fn prepare(&mut self, settings: &DenialSettings) {
        Decide::prepare(self, settings);
    }

    fn limit(&self, kind: Kind, head: &RequestHead<'_>) -> Result<Option<Self::Flow>, Denial> {
        let policy = self.policy().load();
        let deny = |decision: &Decision<'_>| self.denial(policy.now(), &policy, decision);
        let piece = piece_of(&policy, kind, self.finder(), head, deny)?;
        let asked = || Asked::of(kind, self.finder(), head);
        Ok(piece.map(|piece| PolicyFlow::new(self.policy().clone(), asked(), piece)))
    }
}
