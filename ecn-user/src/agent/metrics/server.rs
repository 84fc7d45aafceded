//! The HTTP server: two short responses, to few clients at a time.
//!
//! Only method and path of a request are examined, each connection serves one request, and all waiting for clients is
//! bounded, so that slow or many clients can only delay each other.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time,
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Maximum size of a request's line and headers: the minimum that hyper accepts.
const REQUEST_BYTES: usize = 8 << 10;
/// Delay after a connection could not be accepted, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the agent is alive.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Health {
    pub(super) const fn ok() -> Self {
        Self {
            status: "ok",
            reason: None,
        }
    }

    pub(super) const fn failed(reason: String) -> Self {
        Self {
            status: "failed",
            reason: Some(reason),
        }
    }
}

/// What is served. Both may block.
pub(super) trait Shown: Send + Sync + 'static {
    /// The text of all metrics, or why it is not available.
    fn metrics(&self) -> Result<String, String>;
    /// Whether the agent is alive.
    fn health(&self) -> Health;
}

/// Limits on the resources of clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at a time; others wait to be accepted.
    pub(super) connections: usize,
    /// Time in which the request has to arrive.
    pub(super) request: Duration,
    /// Time for request and response.
    pub(super) whole: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16,
            request: Duration::from_secs(2),
            // The default scrape timeout of Prometheus is 10 s.
            whole: Duration::from_secs(10),
        }
    }
}

struct Server<S> {
    shown: Arc<S>,
    /// One scrape at a time: if one is stuck, others wait without occupying a thread each.
    turn: Arc<Semaphore>,
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self {
            shown: Arc::clone(&self.shown),
            turn: Arc::clone(&self.turn),
        }
    }
}

/// Serves until it is dropped, which closes all connections.
pub(super) async fn serve<S: Shown>(listener: TcpListener, shown: Arc<S>, limits: Limits) {
    let server = Server {
        shown,
        turn: Arc::new(Semaphore::new(1)),
    };
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= limits.connections {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let one = server.clone().connection(stream, limits.request);
                connections.spawn(time::timeout(limits.whole, one));
            }
            Err(error) => {
                tracing::debug!("metrics: {error}");
                time::sleep(PAUSE).await;
            }
        }
    }
}

impl<S: Shown> Server<S> {
    async fn connection(self, stream: TcpStream, patience: Duration) {
        let answer = service_fn(move |request| {
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.answer(&request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size(REQUEST_BYTES)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        if let Err(error) = served.await {
            tracing::debug!("metrics: {error}");
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n");
            let allowed = header::HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(header::ALLOW, allowed);
            return refused;
        }
        match request.uri().path() {
            "/metrics" => self.metrics().await,
            "/healthz" => self.health().await,
            _ => response(StatusCode::NOT_FOUND, TEXT, "/metrics or /healthz\n"),
        }
    }

    async fn metrics(&self) -> Response<Full<Bytes>> {
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else {
            return unavailable("the agent is stopping".to_owned());
        };
        let shown = Arc::clone(&self.shown);
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            shown.metrics()
        });
        match read.await {
            Ok(Ok(text)) => response(StatusCode::OK, OPEN_METRICS, text),
            Ok(Err(error)) => unavailable(error),
            Err(error) => unavailable(error.to_string()),
        }
    }

    async fn health(&self) -> Response<Full<Bytes>> {
        let shown = Arc::clone(&self.shown);
        let health = tokio::task::spawn_blocking(move || shown.health()).await;
        let health = health.unwrap_or_else(|error| Health::failed(error.to_string()));
        let status = match health.reason {
            None => StatusCode::OK,
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let json = serde_json::to_string(&health).unwrap_or_default();
        response(status, JSON, json + "\n")
    }
}

fn unavailable(error: String) -> Response<Full<Bytes>> {
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, error + "\n")
}

fn response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}
