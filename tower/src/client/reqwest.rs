//! The middleware for reqwest.

use http::{Extensions, HeaderMap, StatusCode};
use portcullis_async::Timer;
use reqwest_middleware::reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::ServerLimits;

/// As [`ClientLayer`](super::ClientLayer). A request that is not sent fails with
/// [`Error::Middleware`]; `downcast_ref` of the error in it returns the
/// [`Rejected`](portcullis_async::Rejected). Set the longest wait by
/// [`timeout`](super::ServerLimitsBuilder::timeout). A denial is a response as any other, and the
/// middleware repeats no request.
///
/// **Redirects.** A client of reqwest follows up to 10 of them by itself, and a middleware sees
/// only the last reply. So the requests that follow a redirect are sent past all limits, also to
/// servers that have denied requests. Build the client with
/// `redirect(reqwest::redirect::Policy::none())`, and send a request to the target of a redirect
/// yourself, as the guide `docs/crawler.md` does.
///
/// If the client follows redirects nevertheless, the last reply tells about the server that sent
/// it, and about no other.
#[async_trait::async_trait]
impl<T: Timer + Send + Sync + 'static> Middleware for ServerLimits<T> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let asked = server(request.url());
        let sending = self.acquire(&asked).await.map_err(Error::middleware)?;
        let response = next.run(request, extensions).await?;
        let (status, headers) = (response.status(), response.headers());
        let replied = server(response.url());
        if replied == asked {
            sending.replied(status, headers);
        } else {
            // The first server has sent a redirect, whose fields the client keeps for itself.
            sending.replied(StatusCode::FOUND, &HeaderMap::new());
            self.learn(&replied, status, headers);
        }
        Ok(response)
    }
}

/// Returns the name of the server of a URL: its host, and its port if that is not the one of the
/// scheme.
fn server(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    }
}
