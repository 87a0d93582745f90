//! The middleware for reqwest.

use http::Extensions;
use portcullis_async::Timer;
use reqwest_middleware::reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::ServerLimits;

/// As [`ClientLayer`](super::ClientLayer). A request that is not sent fails with
/// [`Error::Middleware`], whose source is [`Rejected`](portcullis_async::Rejected).
#[async_trait::async_trait]
impl<T: Timer + Send + Sync + 'static> Middleware for ServerLimits<T> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let url = request.url();
        let server = match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (host, _) => host.unwrap_or_default().to_owned(),
        };
        let sending = self.acquire(&server).await.map_err(Error::middleware)?;
        let response = next.run(request, extensions).await?;
        sending.replied(response.status(), response.headers());
        Ok(response)
    }
}
