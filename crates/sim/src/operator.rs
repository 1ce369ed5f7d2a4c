//! Operators: one command after the other, sent to every manager until one has executed it.

use std::collections::VecDeque;

use millpond_cluster::manager::{AdminAnswer, AdminCommand};

use crate::message::{Address, Item, Message, Time, ms};
use crate::world::World;

/// Time after which a command is sent again.
const AGAIN: Time = ms(200);
/// Time after which a command during the faults is given up.
const PATIENCE: Time = ms(3000);
/// Age from which a manager does not begin a command.
const DEADLINE: Time = ms(1000);
/// Address of the operators.
const DESK: Address = Address::Client(0);

#[derive(Clone, Debug)]
struct Order {
    command: AdminCommand,
    /// Time of giving up; `None` for a command that is not given up.
    until: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Operator {
    orders: VecDeque<Order>,
    /// Number of the command in flight.
    call: u64,
}

impl Operator {
    /// Whether all commands were executed.
    pub(crate) fn finished(&self) -> bool {
        self.orders.is_empty()
    }
}

impl World {
    /// Queues a command that may be given up.
    pub(crate) fn order(&mut self, command: AdminCommand) {
        let until = Some(self.now + PATIENCE);
        self.operator.orders.push_back(Order { command, until });
    }

    /// Queues a command that is sent until it is done.
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
