//! What a call through the gateway costs: `cargo bench --bench gateway [-- RUN...]`.
//!
//! Each run starts the program on a store of its own, between clients and a service in this process, all on loopback,
//! and prints a line for each case: CPU time of the gateway for a call, waits of the clients, calls in a second and the
//! gateway's memory. Times are of this machine and this moment: compare lines of one run.

mod events;
mod gateway;
mod herd;
mod load;
mod runs;
mod service;
mod way;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    // cargo itself adds an option that begins with a dash.
    let chosen: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let Some(unknown) = chosen.iter().find(|name| !runs::ALL.iter().any(|(known, _)| known == name)) {
        let known: Vec<&str> = runs::ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("no run is called {unknown}; there are {}", known.join(", ")).into());
    }
    for (name, run) in runs::ALL {
        if chosen.is_empty() || chosen.iter().any(|wanted| wanted == name) {
            println!("\n{name}");
            run()?;
        }
    }
    Ok(())
}
