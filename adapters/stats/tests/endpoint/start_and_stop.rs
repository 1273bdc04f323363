//! How an endpoint starts, which addresses it accepts, and how it stops.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use corewheel::TimerService;
use corewheel_stats::StatsEndpoint;

use crate::client::get;
use crate::{endpoint, fire, served, service};

fn start_on(service: &TimerService, address: impl ToSocketAddrs) -> std::io::Result<StatsEndpoint> {
    StatsEndpoint::start(service.stats_source(), address)
}

#[test]
fn endpoint_listens_on_the_address_that_it_is_given() {
    let service = service(1);
    let endpoint = start_on(&service, (Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    assert!(endpoint.local_addr().ip().is_unspecified());
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, endpoint.local_addr().port()));
    assert_eq!(get(here, "/live").status, 200);
}

#[test]
fn start_on_a_port_in_use_returns_an_error_of_that_kind_and_timers_still_fire() {
    let (service, _first, taken) = served();
    let error = start_on(&service, taken).expect_err("the port is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error:?}");
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
    fire(&service, 0, 10);
    assert_eq!(get(taken, "/live").status, 200);
}

#[test]
fn start_with_several_addresses_binds_the_first_free_one() {
    let service = service(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let holder = endpoint(&service);
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let addresses = [holder.local_addr(), free];
    let endpoint = start_on(&service, &addresses[..]).unwrap();
    assert_ne!(endpoint.local_addr(), holder.local_addr());
    assert_eq!(endpoint.local_addr().ip(), taken.ip());
}

#[test]
fn start_on_an_address_of_another_machine_returns_an_error_that_names_it() {
    let service = service(1);
    let error = start_on(&service, "192.0.2.1:9920").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable, "{error:?}");
    assert!(error.to_string().contains("192.0.2.1:9920"), "{error}");
}

#[test]
fn start_without_an_address_is_refused() {
    let service = service(1);
    for error in [start_on(&service, "no port"), start_on(&service, &[][..])] {
        let error = error.expect_err("there is no address");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    }
}

#[test]
fn endpoint_shows_the_last_counts_after_the_service_is_dropped() {
    let (service, _endpoint, address) = served();
    fire(&service, 0, 3);
    drop(service);
    let reply = get(address, "/stats.json");
    let stats: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(stats["shards"][0]["fired"], 3);
    assert_eq!(stats["shards"][0]["state"], "closed");
}

#[test]
fn stop_frees_the_port_for_another_endpoint() {
    let service = service(1);
    // Another process may take the port between stop and start, though not in each of 20 rounds.
    let again = (0..20).any(|_| {
        let endpoint = endpoint(&service);
        let address = endpoint.local_addr();
        assert_eq!(get(address, "/live").status, 200);
        drop(endpoint);
        let again = start_on(&service, address);
        again.is_ok_and(|endpoint| get(endpoint.local_addr(), "/live").status == 200)
    });
    assert!(again, "the port is never free after a stop");
}

#[test]
fn endpoint_starts_and_stops_inside_a_tokio_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_service, _endpoint, address) = served();
        assert_eq!(get(address, "/live").status, 200);
    });
}
