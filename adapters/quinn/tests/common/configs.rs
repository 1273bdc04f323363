//! A server's certificate, and what endpoints are configured with.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, ServerConfig, TransportConfig};

/// A certificate for `localhost`, and its private key.
static CERTIFICATE: LazyLock<(CertificateDer<'static>, Vec<u8>)> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    (made.cert.der().clone(), made.signing_key.serialize_der())
});

/// The certificate of the servers of this process.
pub(crate) fn certificate() -> CertificateDer<'static> {
    CERTIFICATE.0.clone()
}

/// An idle time, without probes for the greatest datagram, which would be activity.
pub(crate) fn transport(idle: Duration) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(idle.try_into().unwrap())).mtu_discovery_config(None);
    transport
}

/// A server with the certificate of this process.
pub(crate) fn of_server(transport: &Arc<TransportConfig>) -> ServerConfig {
    let key = PrivatePkcs8KeyDer::from(CERTIFICATE.1.clone()).into();
    let mut config = ServerConfig::with_single_cert(vec![certificate()], key).unwrap();
    config.transport_config(Arc::clone(transport));
    config
}

/// A client of servers with a certificate.
pub(crate) fn of_client(
    certificate: CertificateDer<'static>,
    transport: &Arc<TransportConfig>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
    config.transport_config(Arc::clone(transport));
    config
}
