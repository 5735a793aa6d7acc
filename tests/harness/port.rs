//! Ports that the system chooses and that stay reserved.

use tokio::net::TcpSocket;

/// A port on 127.0.0.1 kept for one server for as long as this value lives, also while that server is down: the socket is bound but does not listen,
/// so the system gives the port to nobody who asks for any, and a server that sets `SO_REUSEADDR` (all do) can still listen on it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _bound: TcpSocket,
}

impl Port {
    /// Reserves a port that the system chooses.
    ///
    /// # Panics
    /// When there is none.
    pub fn reserve() -> Port {
        let socket = TcpSocket::new_v4().expect("make a socket");
        socket.set_reuseaddr(true).expect("set SO_REUSEADDR");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("bind a port on the loopback");
        let number = socket.local_addr().expect("ask for the port").port();
        Port { number, _bound: socket }
    }

    /// Reserves two ports, the second one `apart` above the first.
    ///
    /// # Panics
    /// When none of many are free together.
    pub fn reserve_two(apart: u16) -> (Port, Port) {
        for _ in 0..100 {
            let first = Port::reserve();
            let Some(number) = first.number.checked_add(apart) else { continue };
            let address = ([127, 0, 0, 1], number).into();
            // Without SO_REUSEADDR: the bind fails if anybody else has the port, listening or not.
            let alone = TcpSocket::new_v4().expect("make a socket");
            alone.set_reuseaddr(false).expect("clear SO_REUSEADDR");
            if alone.bind(address).is_err() {
                continue;
            }
            drop(alone);
            let socket = TcpSocket::new_v4().expect("make a socket");
            socket.set_reuseaddr(true).expect("set SO_REUSEADDR");
            if socket.bind(address).is_ok() {
                return (first, Port { number, _bound: socket });
            }
        }
        panic!("no two free ports {apart} apart");
    }

    /// Returns the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}
