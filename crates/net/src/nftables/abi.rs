//! Numbers of the kernel's nftables interface (`linux/netfilter/nf_tables.h`, `nfnetlink.h`).
//!
//! Registers are counted in words of four bytes here; [`register`] gives the kernel's number for
//! one.

/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const SUBSYSTEM: u16 = 10;
/// `NFNLGRP_NFTABLES`: gets every change.
pub(super) const CHANGES_GROUP: u32 = 7;
/// Opens a transaction.
pub(super) const BATCH_BEGIN: u16 = 16;
/// Ends it; the kernel applies all of it then.
pub(super) const BATCH_END: u16 = 17;
/// Size of `nfgenmsg`.
pub(super) const GENERIC_BYTES: usize = 4;

/// Messages.
pub(super) mod message {
    pub(in super::super) const NEW_TABLE: u16 = 0;
    pub(in super::super) const GET_TABLE: u16 = 1;
    pub(in super::super) const DELETE_TABLE: u16 = 2;
    pub(in super::super) const NEW_CHAIN: u16 = 3;
    pub(in super::super) const GET_CHAIN: u16 = 4;
    pub(in super::super) const DELETE_CHAIN: u16 = 5;
    pub(in super::super) const NEW_RULE: u16 = 6;
    pub(in super::super) const GET_RULE: u16 = 7;
    pub(in super::super) const DELETE_RULE: u16 = 8;
    pub(in super::super) const NEW_SET: u16 = 9;
    pub(in super::super) const NEW_ELEMENTS: u16 = 12;
    pub(in super::super) const GET_ELEMENTS: u16 = 13;
    pub(in super::super) const DELETE_ELEMENTS: u16 = 14;
}

/// Attributes of tables, chains, rules, sets and elements.
pub(super) mod attribute {
    /// One item of any list.
    pub(in super::super) const LIST_ELEMENT: u16 = 1;
    /// `NFTA_TABLE_*`
    pub(in super::super) const TABLE_NAME: u16 = 1;
    /// `NFTA_CHAIN_*`
    pub(in super::super) const CHAIN_TABLE: u16 = 1;
    pub(in super::super) const CHAIN_NAME: u16 = 3;
    pub(in super::super) const CHAIN_HOOK: u16 = 4;
    pub(in super::super) const CHAIN_POLICY: u16 = 5;
    pub(in super::super) const CHAIN_TYPE: u16 = 7;
    /// `NFTA_HOOK_*`
    pub(in super::super) const HOOK_NUMBER: u16 = 1;
    pub(in super::super) const HOOK_PRIORITY: u16 = 2;
    pub(in super::super) const HOOK_DEVICE: u16 = 3;
    /// `NFTA_RULE_*`
    pub(in super::super) const RULE_TABLE: u16 = 1;
    pub(in super::super) const RULE_CHAIN: u16 = 2;
    pub(in super::super) const RULE_HANDLE: u16 = 3;
    pub(in super::super) const RULE_EXPRESSIONS: u16 = 4;
    pub(in super::super) const RULE_USERDATA: u16 = 7;
    /// `NFTA_SET_*`
    pub(in super::super) const SET_TABLE: u16 = 1;
    pub(in super::super) const SET_NAME: u16 = 2;
    pub(in super::super) const SET_FLAGS: u16 = 3;
    pub(in super::super) const SET_KEY_TYPE: u16 = 4;
    pub(in super::super) const SET_KEY_BYTES: u16 = 5;
    pub(in super::super) const SET_DATA_TYPE: u16 = 6;
    pub(in super::super) const SET_DATA_BYTES: u16 = 7;
    pub(in super::super) const SET_ID: u16 = 10;
    /// `NFTA_SET_ELEM_LIST_*`
    pub(in super::super) const ELEMENTS_TABLE: u16 = 1;
    pub(in super::super) const ELEMENTS_SET: u16 = 2;
    pub(in super::super) const ELEMENTS_LIST: u16 = 3;
    pub(in super::super) const ELEMENTS_SET_ID: u16 = 4;
    /// `NFTA_SET_ELEM_*`
    pub(in super::super) const ELEMENT_KEY: u16 = 1;
    pub(in super::super) const ELEMENT_DATA: u16 = 2;
    /// `NFTA_EXPR_*`
    pub(in super::super) const EXPRESSION_NAME: u16 = 1;
    pub(in super::super) const EXPRESSION_DATA: u16 = 2;
    /// `NFTA_DATA_*`
    pub(in super::super) const DATA_VALUE: u16 = 1;
    pub(in super::super) const DATA_VERDICT: u16 = 2;
    /// `NFTA_VERDICT_*`
    pub(in super::super) const VERDICT_CODE: u16 = 1;
    pub(in super::super) const VERDICT_CHAIN: u16 = 2;
}

/// Flags and data types of sets.
pub(super) mod set {
    /// `NFT_SET_*`
    pub(in super::super) const ANONYMOUS: u32 = 1;
    pub(in super::super) const CONSTANT: u32 = 2;
    pub(in super::super) const MAP: u32 = 8;
    /// The data of a map's elements are verdicts.
    pub(in super::super) const DATA_VERDICT: u32 = 0xffff_ff00;
    /// Types are for people who list the table; the kernel does not look at them.
    pub(in super::super) const INTEGER: u32 = 4;
    pub(in super::super) const IPV4: u32 = 7;
    pub(in super::super) const IPV6: u32 = 8;
    pub(in super::super) const PROTOCOL: u32 = 12;
    pub(in super::super) const SERVICE: u32 = 13;
    /// Concatenated types take six bits each.
    pub(in super::super) const TYPE_BITS: u32 = 6;
}

/// Attributes of expressions, by expression.
pub(super) mod expression {
    /// `NFTA_META_*`
    pub(in super::super) const META_DESTINATION: u16 = 1;
    pub(in super::super) const META_KEY: u16 = 2;
    pub(in super::super) const META_SOURCE: u16 = 3;
    /// `NFTA_CT_*`
    pub(in super::super) const CT_DESTINATION: u16 = 1;
    pub(in super::super) const CT_KEY: u16 = 2;
    pub(in super::super) const CT_SOURCE: u16 = 4;
    /// `NFTA_CMP_*`
    pub(in super::super) const COMPARE_SOURCE: u16 = 1;
    pub(in super::super) const COMPARE_OPERATION: u16 = 2;
    pub(in super::super) const COMPARE_DATA: u16 = 3;
    /// `NFTA_PAYLOAD_*`
    pub(in super::super) const PAYLOAD_DESTINATION: u16 = 1;
    pub(in super::super) const PAYLOAD_BASE: u16 = 2;
    pub(in super::super) const PAYLOAD_OFFSET: u16 = 3;
    pub(in super::super) const PAYLOAD_BYTES: u16 = 4;
    /// `NFTA_BITWISE_*`
    pub(in super::super) const BITWISE_SOURCE: u16 = 1;
    pub(in super::super) const BITWISE_DESTINATION: u16 = 2;
    pub(in super::super) const BITWISE_BYTES: u16 = 3;
    pub(in super::super) const BITWISE_MASK: u16 = 4;
    pub(in super::super) const BITWISE_XOR: u16 = 5;
    /// `NFTA_IMMEDIATE_*`
    pub(in super::super) const IMMEDIATE_DESTINATION: u16 = 1;
    pub(in super::super) const IMMEDIATE_DATA: u16 = 2;
    /// `NFTA_NAT_*`
    pub(in super::super) const NAT_TYPE: u16 = 1;
    pub(in super::super) const NAT_FAMILY: u16 = 2;
    pub(in super::super) const NAT_ADDRESS_MIN: u16 = 3;
    pub(in super::super) const NAT_ADDRESS_MAX: u16 = 4;
    pub(in super::super) const NAT_PORT_MIN: u16 = 5;
    pub(in super::super) const NAT_PORT_MAX: u16 = 6;
    pub(in super::super) const NAT_FLAGS: u16 = 7;
    /// `NFTA_REDIR_*`
    pub(in super::super) const REDIRECT_PORT_MIN: u16 = 1;
    pub(in super::super) const REDIRECT_PORT_MAX: u16 = 2;
    pub(in super::super) const REDIRECT_FLAGS: u16 = 3;
    /// `NFTA_REJECT_*`
    pub(in super::super) const REJECT_TYPE: u16 = 1;
    pub(in super::super) const REJECT_CODE: u16 = 2;
    /// `NFTA_NG_*`
    pub(in super::super) const NUMBER_DESTINATION: u16 = 1;
    pub(in super::super) const NUMBER_MODULUS: u16 = 2;
    pub(in super::super) const NUMBER_TYPE: u16 = 3;
    /// `NFTA_HASH_*`
    pub(in super::super) const HASH_SOURCE: u16 = 1;
    pub(in super::super) const HASH_DESTINATION: u16 = 2;
    pub(in super::super) const HASH_BYTES: u16 = 3;
    pub(in super::super) const HASH_MODULUS: u16 = 4;
    pub(in super::super) const HASH_SEED: u16 = 5;
    /// `NFTA_LOOKUP_*`
    pub(in super::super) const LOOKUP_SET: u16 = 1;
    pub(in super::super) const LOOKUP_SOURCE: u16 = 2;
    pub(in super::super) const LOOKUP_DESTINATION: u16 = 3;
    pub(in super::super) const LOOKUP_SET_ID: u16 = 4;
    /// `NFTA_FIB_*`
    pub(in super::super) const FIB_DESTINATION: u16 = 1;
    pub(in super::super) const FIB_RESULT: u16 = 2;
    pub(in super::super) const FIB_FLAGS: u16 = 3;
}

/// What expressions can load, test and do.
pub(super) mod key {
    pub(in super::super) const META_ETHER_TYPE: u32 = 1;
    /// `NFT_META_*`
    pub(in super::super) const META_MARK: u32 = 3;
    pub(in super::super) const META_IN_NAME: u32 = 6;
    pub(in super::super) const META_OUT_NAME: u32 = 7;
    pub(in super::super) const META_SOCKET_USER: u32 = 10;
    pub(in super::super) const META_FAMILY: u32 = 15;
    pub(in super::super) const META_PROTOCOL: u32 = 16;
    /// `NFT_CT_*`
    pub(in super::super) const CT_STATE: u32 = 0;
    pub(in super::super) const CT_DIRECTION: u32 = 1;
    pub(in super::super) const CT_MARK: u32 = 3;
    pub(in super::super) const CT_ZONE: u32 = 17;
    /// `NFT_CMP_*`
    pub(in super::super) const EQUAL: u32 = 0;
    pub(in super::super) const NOT_EQUAL: u32 = 1;
    /// `NFT_PAYLOAD_*`
    pub(in super::super) const NETWORK_HEADER: u32 = 1;
    pub(in super::super) const TRANSPORT_HEADER: u32 = 2;
    /// `NFT_NAT_*`
    pub(in super::super) const SOURCE_NAT: u32 = 0;
    pub(in super::super) const DESTINATION_NAT: u32 = 1;
    /// `NF_NAT_RANGE_MAP_IPS`: the address is given.
    pub(in super::super) const NAT_ADDRESS: u32 = 1;
    /// `NF_NAT_RANGE_PROTO_SPECIFIED`: the port is given.
    pub(in super::super) const NAT_PORT: u32 = 2;
    /// `NFT_REJECT_*`
    pub(in super::super) const REJECT_ICMP: u32 = 0;
    pub(in super::super) const REJECT_RESET: u32 = 1;
    pub(in super::super) const REJECT_ICMP_EITHER: u32 = 2;
    /// `NFT_NG_RANDOM`
    pub(in super::super) const RANDOM: u32 = 1;
    /// `NFT_FIB_RESULT_ADDRTYPE`
    pub(in super::super) const FIB_ADDRESS_TYPE: u32 = 3;
    /// `NFTA_FIB_F_DADDR`
    pub(in super::super) const FIB_DESTINATION_ADDRESS: u32 = 2;
}

/// `NFPROTO_*`, which are also the families of tables.
pub(super) mod family {
    pub(in super::super) const INET: u8 = 1;
    pub(in super::super) const IPV4: u8 = 2;
    pub(in super::super) const NETDEV: u8 = 5;
    pub(in super::super) const BRIDGE: u8 = 7;
    pub(in super::super) const IPV6: u8 = 10;
}

/// Verdict codes.
pub(super) mod verdict {
    pub(in super::super) const DROP: i32 = 0;
    pub(in super::super) const ACCEPT: i32 = 1;
    pub(in super::super) const JUMP: i32 = -3;
    pub(in super::super) const GOTO: i32 = -4;
    pub(in super::super) const RETURN: i32 = -5;
}

/// The kernel's number for the register that begins at a word: of the old, four words wide
/// registers where one begins there, which is how it lists them, too.
pub(super) fn register(word: u32) -> u32 {
    const WIDE: u32 = 1;
    const NARROW: u32 = 8;
    if word.is_multiple_of(4) { WIDE + word / 4 } else { NARROW + word }
}
