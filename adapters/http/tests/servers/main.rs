//! Servers and clients of hyper, axum and tower: each deadline by a manual clock, and real clients
//! over real sockets.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod axum_closes;
mod axum_serve;
mod axum_told;
mod events;
mod exchanges;
mod exchanges_over_sockets;
mod half_closed;
mod http;
mod hyper;
mod hyper_clients;
mod hyper_sockets;
mod keep_alive;
mod on_its_way;
mod over_tls;
mod paused;
mod reentrant;
mod served;
mod server;
mod stream;
mod threads;
mod tower;
mod tunnels;
mod windows;
