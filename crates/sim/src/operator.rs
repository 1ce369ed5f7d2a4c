//! Operators: one command after the other, sent to every manager until one has carried it out.

use std::collections::VecDeque;

use millpond_cluster::manager::{AdminAnswer, AdminCommand};

use crate::message::{Address, Item, Message, Time, ms};
use crate::world::World;

/// A command is sent again after this long.
const AGAIN: Time = ms(200);
/// Commands during the faults are given up after this long.
const PATIENCE: Time = ms(3000);
/// A manager that gets a command later than this does not begin with it.
const DEADLINE: Time = ms(1000);
/// Where operators sit.
const DESK: Address = Address::Client(0);

#[derive(Clone, Debug)]
struct Order {
    command: AdminCommand,
    /// `None` for one that is not given up.
    until: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Operator {
    orders: VecDeque<Order>,
    /// Number of the command under way.
    call: u64,
}

impl Operator {
    /// Everything was carried out.
    pub(crate) fn finished(&self) -> bool {
        self.orders.is_empty()
    }
}

impl World {
    /// Some operator wants this; perhaps in vain.
    pub(crate) fn order(&mut self, command: AdminCommand) {
        let until = Some(self.now + PATIENCE);
        self.operator.orders.push_back(Order { command, until });
    }

    /// An operator wants this until it is done.
    pub(crate) fn order_surely(&mut self, command: AdminCommand) {
        self.operator.orders.push_back(Order { command, until: None });
    }

    pub(crate) fn operator_works(&mut self) {
        self.after(AGAIN, Item::Operator);
        let now = self.now;
        let given_up = |order: &Order| order.until.is_some_and(|until| until <= now);
        while self.operator.orders.front().is_some_and(given_up) {
            self.operator.orders.pop_front();
            self.operator.call += 1;
        }
        self.send_order();
    }

    fn send_order(&mut self) {
        let Some(order) = self.operator.orders.front() else { return };
        let (call, command) = (self.operator.call, order.command.clone());
        let until = self.now + DEADLINE;
        for manager in 0..self.managers.len() {
            let command = command.clone();
            self.send(DESK, Address::Manager(manager), Message::Admin { call, command, until });
        }
    }

    pub(crate) fn operator_hears(&mut self, call: u64, answer: &AdminAnswer) {
        if call != self.operator.call || matches!(answer, AdminAnswer::NotPrimary(_)) {
            return;
        }
        if let Some(order) = self.operator.orders.pop_front() {
            self.trace.note(self.now, || format!("operator: {:?}: {answer:?}", order.command));
        }
        self.operator.call += 1;
        self.send_order();
    }
}
