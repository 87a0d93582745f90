//! A client that obeys the limits that its server states. The server is the example `ocelot`: each
//! client may send 3 requests in 10 s, and waits for 5 s after a denial.
//!
//! ```sh
//! cargo run -p portcullis-tower --features axum,fields --example ocelot &
//!
//! # The first reply states the limit. The other requests share what is left, and then wait for the
//! # next window. None is denied.
//! cargo run -p portcullis-tower --features reqwest --example client alice
//!
//! # Others use up the requests of `bob`. The fourth gets 429.
//! for i in 1 2 3 4; do curl -i -H 'Oc-Client: bob' http://127.0.0.1:3000/quotes/7; done
//! # The first request is denied, with `Retry-After`. The others wait for that time. They are
//! # served.
//! cargo run -p portcullis-tower --features reqwest --example client bob
//! ```

use core::error::Error;
use core::time::Duration;
use std::time::Instant;

use portcullis_tower::client::ServerLimits;
use reqwest_middleware::reqwest::Client;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::task::JoinSet;

/// A reply, and the time since the start.
pub(crate) struct Reply {
    pub(crate) at: Duration,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    remaining: Option<String>,
}

/// A client of HTTP that waits until its server is expected to grant a request.
fn obedient() -> Result<ClientWithMiddleware, Box<dyn Error>> {
    let client = Client::builder().no_proxy().build()?;
    // The clones of the client share what they know.
    let limits = ServerLimits::new();
    Ok(ClientBuilder::new(client).with(limits).build())
}

/// Sends a request, and then `more` of them at once. Returns the replies in the order of their
/// times.
pub(crate) async fn quotes(
    url: &str,
    name: &str,
    more: usize,
) -> Result<Vec<Reply>, Box<dyn Error>> {
    let client = obedient()?;
    let start = Instant::now();
    let ask = || {
        let request = client.get(url).header("Oc-Client", name);
        async move {
            let response = request.send().await?;
            let text = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
            Ok::<_, reqwest_middleware::Error>(Reply {
                at: start.elapsed(),
                status: response.status().as_u16(),
                retry_after: text("retry-after"),
                remaining: text("x-ratelimit-remaining"),
            })
        }
    };
    let mut replies = vec![ask().await?];
    let mut tasks: JoinSet<_> = (0..more).map(|_| ask()).collect();
    while let Some(reply) = tasks.join_next().await {
        replies.push(reply??);
    }
    Ok(replies)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "alice".to_owned());
    for reply in quotes("http://127.0.0.1:3000/quotes/7", &name, 5).await? {
        let remaining = reply.remaining.as_deref().unwrap_or("?");
        print!(
            "{:4.1} s: {}, {remaining} left",
            reply.at.as_secs_f64(),
            reply.status
        );
        match reply.retry_after {
            Some(seconds) => println!(", retry after {seconds} s"),
            None => println!(),
        }
    }
    Ok(())
}
