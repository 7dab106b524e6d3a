//! Deletes what another program left: named chains in tables that are not Ambit's.

use super::abi::{attribute, message};
use super::encode::{self, Described};
use super::{Family, Nftables, read};
use crate::netlink::NetlinkError;

impl Nftables {
    /// Deletes the chains of these names from the tables of these names, with all that is in them
    /// and every rule that jumps there, in one transaction; what else the tables hold stays.
    /// `false` when there was none.
    pub fn delete_chains(
        &mut self,
        family: Family,
        tables: &[&str],
        chains: &[&str],
    ) -> Result<bool, NetlinkError> {
        let request = encode::object(message::GET_CHAIN, 0, family);
        let mut found: Vec<(String, String)> = Vec::new();
        for answer in self.netlink.dump(request, "list the chains of nftables")? {
            let table = read::read_table(&answer.payload);
            let chain = read::read_chain(&answer.payload).map(|(name, _)| name);
            found.extend(table.zip(chain));
        }
        let is_named = |(table, chain): &(String, String)| {
            tables.contains(&table.as_str()) && chains.contains(&chain.as_str())
        };
        found.retain(is_named);
        if found.is_empty() {
            return Ok(false);
        }
        let mut messages = self.jumps_to(family, &found)?;
        // All are emptied before the first goes, for they may call one another.
        for (table, chain) in &found {
            let mut request = encode::object(message::DELETE_RULE, 0, family);
            request.text(attribute::RULE_TABLE, table);
            request.text(attribute::RULE_CHAIN, chain);
            messages.push((request, format!("empty nftables chain {chain}")));
        }
        for (table, chain) in &found {
            let mut request = encode::object(message::DELETE_CHAIN, 0, family);
            request.text(attribute::CHAIN_TABLE, table);
            request.text(attribute::CHAIN_NAME, chain);
            messages.push((request, format!("delete nftables chain {chain}")));
        }
        self.commit(messages).map(|()| true)
    }

    /// Messages that delete the rules which go to these chains of these tables.
    fn jumps_to(
        &mut self,
        family: Family,
        chains: &[(String, String)],
    ) -> Result<Vec<Described>, NetlinkError> {
        let request = encode::object(message::GET_RULE, 0, family);
        let mut messages = Vec::new();
        for answer in self.netlink.dump(request, "list the rules of nftables")? {
            let Some(table) = read::read_table(&answer.payload) else { continue };
            let goes_there = |to: String| chains.contains(&(table.clone(), to));
            if !read::jumps(&answer.payload).any(goes_there) {
                continue;
            }
            let Some((chain, handle)) = read::place(&answer.payload) else { continue };
            let mut request = encode::object(message::DELETE_RULE, 0, family);
            request.text(attribute::RULE_TABLE, &table);
            request.text(attribute::RULE_CHAIN, &chain);
            request.attribute(attribute::RULE_HANDLE, &handle.to_be_bytes());
            messages.push((request, format!("delete a jump from nftables chain {chain}")));
        }
        Ok(messages)
    }
}
