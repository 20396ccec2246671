//! What somebody asks the listener for, and the answer's head.

use std::net::IpAddr;

/// The longest head of a request that is read.
pub const HEAD_MAX_BYTES: usize = 8 << 10;
/// The most lines of a head.
const LINES_MAX: usize = 48;

/// The forms in which metrics are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Form {
    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The metrics; the head alone without `body`.
    Metrics {
        /// In which form.
        form: Form,
        /// Whether they are wanted themselves.
        body: bool,
    },
    /// Nothing that is given: the status line, and a sentence.
    Refused(&'static str, &'static str),
}

/// What was asked for, once all of the request's head is there. `by_name`: a browser could be made to
/// ask under a name that its owner leads here; it is answered nothing then.
pub fn read(bytes: &[u8], by_name: bool) -> Option<Asked> {
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let mut request = httparse::Request::new(&mut lines);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Asked::Refused(
                "431 Request Header Fields Too Large",
                "the request is too long",
            ));
        }
        Err(_) => return Some(Asked::Refused("400 Bad Request", "this is no HTTP request")),
    }
    let header = |name: &str| {
        let mut found = request.headers.iter();
        let found = found.find(|line| line.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    if by_name && !header("host").is_none_or(is_this_machine) {
        return Some(Asked::Refused(
            "403 Forbidden",
            "ask by the address 127.0.0.1, [::1] or localhost",
        ));
    }
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => {
            return Some(Asked::Refused(
                "405 Method Not Allowed",
                "GET and HEAD are answered",
            ));
        }
    };
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some("/metrics") {
        return Some(Asked::Refused(
            "404 Not Found",
            "the metrics are at /metrics",
        ));
    }
    let accept = header("accept").unwrap_or_default();
    let form = match accept.contains("application/openmetrics-text") {
        true => Form::OpenMetrics,
        false => Form::Prometheus,
    };
    Some(Asked::Metrics { form, body })
}

/// Whether a `Host` is an address of this machine, not a name that may be anybody's.
fn is_this_machine(host: &str) -> bool {
    let host = host.trim();
    let host = match host.rsplit_once(':') {
        Some((before, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => before,
        _ => host,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.is_loopback();
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

/// The head of an answer with so many bytes.
pub fn head(asked: Asked, body_bytes: usize) -> Vec<u8> {
    let (status, content_type) = match asked {
        Asked::Metrics { form, .. } => ("200 OK", form.content_type()),
        Asked::Refused(status, _) => (status, "text/plain; charset=utf-8"),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(request: &str) -> &'static str {
        match read(request.as_bytes(), true) {
            Some(Asked::Refused(status, _)) => status,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    #[test]
    fn metrics_are_told_in_the_form_that_is_understood() {
        let asked = |request: &str| read(request.as_bytes(), true);
        let metrics = |form, body| Some(Asked::Metrics { form, body });
        assert_eq!(
            asked("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9345\r\n\r\n"),
            metrics(Form::Prometheus, true)
        );
        assert_eq!(
            asked("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n"),
            metrics(Form::Prometheus, false)
        );
        let newer = "GET /metrics HTTP/1.1\r\nhost: [::1]\r\n\
            Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4\r\n\r\n";
        assert_eq!(asked(newer), metrics(Form::OpenMetrics, true));
        assert_eq!(asked("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1"), None);
    }

    #[test]
    fn everything_else_is_refused() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\x16\x03\x01\x02\0", "400"),
            ("GET /metrics\r\n\r\n", "400"),
            (
                "GET /metrics HTTP/1.1\r\nHost: evil.example:9345\r\n\r\n",
                "403",
            ),
            (
                "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n",
                "403",
            ),
            ("GET /metrics HTTP/1.1\r\nHost: 192.168.1.2\r\n\r\n", "403"),
        ] {
            assert!(refused(request).starts_with(status), "{request:?}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(HEAD_MAX_BYTES));
        assert!(refused(&long).starts_with("431"));
        let many = format!(
            "GET /metrics HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(LINES_MAX + 1)
        );
        assert!(refused(&many).starts_with("431"));
    }
}
