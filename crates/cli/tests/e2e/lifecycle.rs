//! Up, down and apply: one machine per directory, all or nothing, and nothing left.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitStatus;

use ambit_machine::Record;
use ambit_net::sys::process::{Signal, kill};

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, app};
use crate::remains::Footprint;

#[test]
fn a_killed_machine_can_be_taken_down_and_started_again() {
    let machine = Machine::up("killed", Mesh::On, &[]);
    let footprint = machine.footprint();
    let record = Record::read(&machine.layout).expect("the machine is recorded");
    kill(record.pid, Signal::Kill).expect("process 1 can be killed");
    machine.wait("the machine is dead", SETTLE_TIMEOUT, || {
        !machine.ambit(&["status"]).status.success()
    });
    let said = machine.ambit(&["get", "pods"]);
    assert!(!said.status.success() && !said.err.is_empty(), "{}", said.err);
    machine.run(&["down"]);
    footprint.assert_gone();
    let said = machine.ambit(&["down"]);
    assert!(!said.status.success() && said.err.contains("no machine at"), "{}", said.err);
    let said = machine.ambit_with(&["up", "-", "--detach"], &app(Mesh::Off));
    assert!(said.status.success(), "{}", said.err);
    machine.down();
}

#[test]
fn one_machine_per_directory_and_all_or_nothing() {
    let machine = Machine::up("whole", Mesh::Off, &[]);
    let said = machine.ambit_with(&["up", "-", "--detach"], &app(Mesh::Off));
    assert!(!said.status.success() && said.err.contains("a machine runs at"), "{}", said.err);
    assert!(machine.ambit(&["status"]).status.success(), "the first one goes on");

    let before = machine.list("services").len();
    let good = "apiVersion: v1\nkind: Service\nmetadata: {name: good, namespace: app}\n\
                spec: {selector: {app: server}, ports: [{port: 80}]}\n";
    let bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad, namespace: app}\n\
               spec: {containers: [{name: c, image: \"no/such:1\"}]}\n";
    let said = machine.ambit_with(&["apply", "-"], &format!("{good}---\n{bad}"));
    assert!(!said.status.success() && said.err.contains("no/such"), "{}", said.err);
    assert_eq!(machine.list("services").len(), before, "the good one is not applied either");

    let dry = machine.ambit_with(&["apply", "--dry-run", "-"], good);
    assert!(dry.status.success() && dry.out.contains("(dry run)"), "{}{}", dry.out, dry.err);
    assert_eq!(machine.list("services").len(), before, "a dry run changes nothing");
    let said = machine.ambit_with(&["delete", "-"], &format!("{good}---\n{}", app(Mesh::Off)));
    assert!(!said.status.success() && said.err.contains("good"), "{}", said.err);
    assert_eq!(machine.list("services").len(), before, "nothing is deleted either");
    machine.down();
}

/// Without `--detach` the machine lives as long as its command.
#[test]
fn the_end_of_up_is_the_end_of_the_machine() {
    let machine = Machine::none("front");
    let (footprint, status, said) = interrupt_when(&machine, "Ctrl-C takes it down");
    assert!(status.success(), "{said}");
    machine.was_taken_down(&footprint);
}

#[test]
fn an_up_that_is_interrupted_leaves_no_machine() {
    let machine = Machine::none("half");
    let (footprint, status, said) = interrupt_when(&machine, "waiting for 5 pods");
    assert!(!status.success() && said.contains("interrupted"), "{said}");
    machine.was_taken_down(&footprint);
}

/// Runs `ambit up` and sends it Ctrl-C as soon as it says this.
fn interrupt_when(machine: &Machine, line: &str) -> (Footprint, ExitStatus, String) {
    let mut child = machine.spawn(&["up", "-"]);
    let mut input = child.stdin.take().expect("its input is a pipe");
    input.write_all(app(Mesh::Off).as_bytes()).expect("it reads its input");
    drop(input);
    let mut errors = BufReader::new(child.stderr.take().expect("its errors are a pipe"));
    let mut said = String::new();
    while !said.contains(line) {
        let length = errors.read_line(&mut said).expect("its errors are text");
        assert!(length > 0, "it ended and never said {line:?}: {said}");
    }
    let footprint = machine.footprint();
    let pid = i32::try_from(child.id()).expect("process ids are positive");
    kill(pid, Signal::Number(2)).expect("Ctrl-C can be sent");
    errors.read_to_string(&mut said).expect("its errors are text");
    (footprint, child.wait().expect("it ends"), said)
}
