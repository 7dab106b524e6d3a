//! `fortio load` and `fortio server`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::go_flags::{Flags, Takes};
use crate::args::ServeArgs;
use crate::output::fortio::{Settings, json, text};
use crate::plan::Plan;
use crate::serve::{self, Wish};
use crate::{command, plan, terminal};

const FLAGS: [(&str, Takes); 29] = [
    ("qps", Takes::Value),
    ("c", Takes::Value),
    ("t", Takes::Value),
    ("n", Takes::Value),
    ("keepalive", Takes::Switch),
    ("H", Takes::Value),
    ("X", Takes::Value),
    ("payload", Takes::Value),
    ("payload-size", Takes::Value),
    ("timeout", Takes::Value),
    ("h2", Takes::Switch),
    ("stdclient", Takes::Switch),
    ("r", Takes::Value),
    ("p", Takes::Value),
    ("json", Takes::Value),
    ("a", Takes::Switch),
    ("data-dir", Takes::Value),
    ("labels", Takes::Value),
    ("allow-initial-errors", Takes::Switch),
    ("quiet", Takes::Switch),
    ("loglevel", Takes::Value),
    ("log-errors", Takes::Switch),
    ("http-port", Takes::Value),
    ("redirect-port", Takes::Value),
    ("grpc-port", Takes::Value),
    ("tcp-port", Takes::Value),
    ("udp-port", Takes::Value),
    ("runid", Takes::Value),
    ("ui-path", Takes::Value),
];

/// Runs the words behind the name.
pub(super) async fn run(words: &[&str]) -> Result<ExitCode> {
    match words.split_first() {
        Some((&"load", words)) => load(&Flags::read(&FLAGS, words)?).await,
        Some((&"server", words)) => server(&Flags::read(&FLAGS, words)?).await,
        _ => bail!("write fortio load or fortio server; no other command is offered"),
    }
}

async fn load(flags: &Flags<'_>) -> Result<ExitCode> {
    let (plan, settings) = (plan(flags)?, settings(flags)?);
    let path = match flags.value("json") {
        None if flags.is_on("a", false)? => {
            let directory = flags.value("data-dir").unwrap_or(".");
            Some(Path::new(directory).join(format!("{}.json", settings.id)))
        }
        path => path.map(PathBuf::from),
    };
    let to_stdout = path.as_deref() == Some(Path::new("-"));
    let file = path.as_deref().filter(|_| !to_stdout).map(command::create).transpose()?;
    let quiet = flags.is_on("quiet", false)?;
    let measured = command::measure(plan, quiet).await;
    let report =
        measured.map_err(|error| command::or_keep_going(error, "-allow-initial-errors"))?;
    command::tell_doubts(&report);
    let result = serde_json::to_string_pretty(&json(&report, &settings))? + "\n";
    if to_stdout {
        // The JSON alone goes where a program reads it.
        eprint!("{}", text(&report, &settings));
        terminal::print(&result)?;
    } else {
        terminal::print(&text(&report, &settings))?;
    }
    if let (Some(mut file), Some(path)) = (file, &path) {
        std::io::Write::write_all(&mut file, result.as_bytes()).with_context(|| {
            let path = path.display();
            format!("the result could not be saved to {path}; make room, or name another file")
        })?;
    }
    Ok(command::exit_code(&report))
}

fn plan(flags: &Flags<'_>) -> Result<Plan> {
    let [url] = flags.rest[..] else {
        bail!("name one URL, after all flags: fortio load [flags] http://HOST:PORT/PATH")
    };
    let wish = Wish {
        url: url.to_owned(),
        qps: flags.parsed("qps", serve::DEFAULT_QPS)?,
        connections: flags.parsed("c", serve::DEFAULT_CONNECTIONS)?,
        count: flags.parsed("n", 0)?,
        time: flags.value("t").map(plan::duration).transpose()?,
        timeout: flags.value("timeout").map(plan::duration).transpose()?,
        close: !flags.is_on("keepalive", true)?,
        h2: flags.is_on("h2", false)?,
        method: flags.value("X").map(ToOwned::to_owned),
        payload: match flags.parsed("payload-size", 0)? {
            0 => flags.value("payload").unwrap_or_default().to_owned(),
            size if size <= plan::MAX_BODY_BYTES => ".".repeat(size),
            size => bail!("-payload-size {size} is more than {}", plan::MAX_BODY_BYTES),
        },
        headers: flags.all("H").map(ToOwned::to_owned).collect(),
        keep_going: flags.is_on("allow-initial-errors", false)?,
    };
    wish.plan()
}

fn settings(flags: &Flags<'_>) -> Result<Settings> {
    let default = Settings::default();
    let percentiles = match flags.value("p") {
        Some(list) => serve::percentiles(list)?,
        None => default.percentiles,
    };
    let resolution_s = flags.parsed("r", default.resolution_s)?;
    if !(1e-9..=10.0).contains(&resolution_s) {
        bail!("-r {resolution_s} is no width of a bucket in seconds; write 0.0001");
    }
    Ok(Settings {
        resolution_s,
        percentiles,
        labels: flags.value("labels").unwrap_or_default().to_owned(),
        run_id: flags.parsed("runid", 0)?,
        id: serve::result_id(flags.parsed("runid", 0)?),
    })
}

async fn server(flags: &Flags<'_>) -> Result<ExitCode> {
    let text = flags.value("http-port").unwrap_or("8080");
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let listen = match text.parse::<u16>() {
        Ok(port) => SocketAddr::new(any, port),
        Err(_) => {
            text.parse().with_context(|| format!("-http-port {text}: write 8080 or IP:PORT"))?
        }
    };
    let data_dir = PathBuf::from(flags.value("data-dir").unwrap_or("."));
    serve::serve(ServeArgs { listen, data_dir }).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Extent, Pace};

    fn made(words: &str) -> Result<Plan, String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let flags = Flags::read(&FLAGS, &words).map_err(|error| error.to_string())?;
        plan(&flags).map_err(|error| error.to_string())
    }

    #[test]
    fn the_words_of_the_experiments() {
        let plan = made("-qps 1000 -c 100 -t 30s -H X:y -keepalive=false http://a:9080/").unwrap();
        assert_eq!((plan.pace, plan.connections, plan.close), (Pace::Rate(1000.0), 100, true));
        assert_eq!(plan.extent, Extent::Time(std::time::Duration::from_secs(30)));
        let plan = made("-quiet -loglevel Error -qps 0 -n 2000 -payload-size 5 http://a/").unwrap();
        assert_eq!((plan.pace, plan.extent), (Pace::Max, Extent::Count(2000)));
        assert_eq!((plan.request.method.as_str(), plan.request.body.len()), ("POST", 5));
        assert_eq!(made("http://a/").unwrap().pace, Pace::Rate(8.0));
    }

    #[test]
    fn what_is_wrong_is_said_with_a_remedy() {
        for (words, part) in [
            ("", "name one URL"),
            ("http://a -qps 5", "after all flags"),
            ("-qps x http://a", "is not what this flag takes"),
            ("-grpc http://a", "is not offered"),
            ("-c 0 http://a", "must be between 1"),
            ("-qps nan http://a", "NaN is no rate"),
        ] {
            let error = made(words).unwrap_err();
            assert!(error.contains(part), "{words}: {error}");
        }
    }
}
