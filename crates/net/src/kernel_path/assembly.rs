//! Writes BPF instructions (RFC 9669).
//!
//! Forward jumps name a [`Label`], which [`Assembly::finish`] resolves. What a program does is in
//! `programs`; whether it is safe is the kernel's to say.

/// A register; `R0` has results, `R1` to `R5` arguments, `R6` to `R9` survive calls, `FP` is the
/// end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    R0 = 0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    FP,
}

/// How wide a load or store is (RFC 9669 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Width {
    /// Four bytes.
    Word = 0x00,
    /// Eight bytes.
    Double = 0x18,
}

/// Conditions of jumps (RFC 9669 section 4.3), unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    AtLeast = 0x30,
    /// `left & right` is not zero (`JSET`).
    Bits = 0x40,
    NotEqual = 0x50,
}

/// Functions of the kernel (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Function {
    MapLookupElem = 1,
    MapUpdateElem = 2,
    MsgRedirectMap = 60,
    SkLookupTcp = 84,
    SkRelease = 86,
    SkStorageGet = 107,
    RingbufOutput = 130,
    SkcToTcpSock = 137,
}

/// A place in the program that is not written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Label(pub(super) u16);

/// A program while it is written.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    code: Vec<u64>,
    jumps: Vec<(usize, Label)>,
    places: Vec<(Label, usize)>,
}

// Classes, sources and operations (RFC 9669 sections 3 and 4).
const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const ATOMIC: u8 = 0xc3;
/// Addition, which leaves the value before it in the register (RFC 9669 section 5.3).
const ADD_AND_FETCH: i32 = 0x01;
const LOAD_MAP: u8 = 0x18;
const FROM_REGISTER: u8 = 0x08;
const WIDE: u8 = 0x07;
const NARROW: u8 = 0x04;
const ADD: u8 = 0x00;
const SUB: u8 = 0x10;
const AND: u8 = 0x50;
const SHIFT_RIGHT: u8 = 0x70;
const MOVE: u8 = 0xb0;
const JUMP: u8 = 0x05;
const JUMP_NARROW: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_PSEUDO_MAP_FD`: the value of a 64-bit load is the descriptor of a map.
const IS_MAP: u8 = 1;

impl Assembly {
    /// The operation, both registers, an offset and a value, as the kernel reads them on a
    /// little-endian machine.
    fn write(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        let registers = u64::from(to) | u64::from(from) << 4;
        let offset = u64::from(u16::from_ne_bytes(offset.to_ne_bytes()));
        let value = u64::from(u32::from_ne_bytes(value.to_ne_bytes()));
        self.code.push(u64::from(code) | registers << 8 | offset << 16 | value << 32);
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.write(WIDE | MOVE | FROM_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.write(WIDE | MOVE, to as u8, 0, 0, value);
    }

    /// `to += value`
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.write(WIDE | ADD, to as u8, 0, 0, value);
    }

    /// `to += from`
    pub(super) fn add_register(&mut self, to: Register, from: Register) {
        self.write(WIDE | ADD | FROM_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `to -= from`
    pub(super) fn subtract(&mut self, to: Register, from: Register) {
        self.write(WIDE | SUB | FROM_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `to >>= bits`
    pub(super) fn shift_right(&mut self, to: Register, bits: i32) {
        self.write(WIDE | SHIFT_RIGHT, to as u8, 0, 0, bits);
    }

    /// `to -= from`, of their lower 32 bits.
    pub(super) fn subtract_narrow(&mut self, to: Register, from: Register) {
        self.write(NARROW | SUB | FROM_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `to = the address of what lies so far below the end of the stack`
    pub(super) fn address_on_stack(&mut self, to: Register, below: i32) {
        self.copy(to, Register::FP);
        self.add(to, -below);
    }

    /// `to = *(from + offset)`
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.write(LOAD | width as u8, to as u8, from as u8, offset, 0);
    }

    /// As [`Self::load`]; what is loaded later is read later. x86 never does otherwise; elsewhere a
    /// locked operation that changes nothing sees to it.
    pub(super) fn load_ordered(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        if cfg!(target_arch = "x86_64") {
            return self.load(width, to, from, offset);
        }
        self.load_locked(width, to, from, offset);
    }

    /// `to = *(from + offset)`, by adding nothing to it in one step.
    fn load_locked(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.set(to, 0);
        self.write(ATOMIC | width as u8, from as u8, to as u8, offset, ADD_AND_FETCH);
    }

    /// `*(to + offset) = from`
    pub(super) fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.write(STORE | width as u8, to as u8, from as u8, offset, 0);
    }

    /// `to = the map of this descriptor`
    pub(super) fn map(&mut self, to: Register, descriptor: i32) {
        self.write(LOAD_MAP, to as u8, IS_MAP, 0, descriptor);
        self.write(0, 0, 0, 0, 0);
    }

    /// `R0 = function(R1, R2, R3, R4, R5)`
    pub(super) fn call(&mut self, function: Function) {
        self.write(CALL, 0, 0, 0, function as i32);
    }

    /// Goes to a label if the register and the value are so.
    pub(super) fn jump_if(&mut self, left: Register, is: Condition, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.write(JUMP | is as u8, left as u8, 0, 0, value);
    }

    /// Goes to a label if both registers are so.
    pub(super) fn jump_if_register(
        &mut self,
        left: Register,
        is: Condition,
        right: Register,
        label: Label,
    ) {
        self.jumps.push((self.code.len(), label));
        self.write(JUMP | is as u8 | FROM_REGISTER, left as u8, right as u8, 0, 0);
    }

    /// As [`Self::jump_if_register`], of their lower 32 bits.
    pub(super) fn jump_if_narrow(
        &mut self,
        left: Register,
        is: Condition,
        right: Register,
        label: Label,
    ) {
        self.jumps.push((self.code.len(), label));
        self.write(JUMP_NARROW | is as u8 | FROM_REGISTER, left as u8, right as u8, 0, 0);
    }

    /// Goes to a label if the register has one of these bits.
    pub(super) fn jump_if_bits(&mut self, register: Register, bits: i32, label: Label) {
        self.jump_if(register, Condition::Bits, bits, label);
    }

    /// Goes to a label if the register has none of these bits. Destroys it.
    pub(super) fn jump_unless_bits(&mut self, register: Register, bits: i32, label: Label) {
        self.write(WIDE | AND, register as u8, 0, 0, bits);
        self.jump_if(register, Condition::Equal, 0, label);
    }

    /// Goes to a label.
    pub(super) fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.write(JUMP, 0, 0, 0, 0);
    }

    /// The label is here.
    pub(super) fn here(&mut self, label: Label) {
        self.places.push((label, self.code.len()));
    }

    /// Ends the program; `R0` is its result.
    pub(super) fn exit(&mut self) {
        self.write(EXIT, 0, 0, 0, 0);
    }

    /// The program, with its jumps resolved.
    pub(super) fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let place = self.places.iter().find(|(named, _)| *named == label);
            let (_, place) = place.expect("every label that is jumped to has a place");
            let offset = i16::try_from(place - at - 1).expect("programs are short, jumps forward");
            self.code[at] |= u64::from(u16::from_ne_bytes(offset.to_ne_bytes())) << 16;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by hand from the tables of RFC 9669.
    #[test]
    fn instructions_are_as_the_rfc_has_them() {
        let mut it = Assembly::default();
        it.copy(Register::R6, Register::R1);
        it.load(Width::Word, Register::R2, Register::R1, 64);
        it.store(Width::Double, Register::FP, -8, Register::R2);
        it.jump_if(Register::R0, Condition::Equal, 0, Label(0));
        it.subtract_narrow(Register::R3, Register::R4);
        it.call(Function::MapLookupElem);
        it.here(Label(0));
        it.load_locked(Width::Double, Register::R1, Register::R8, 8);
        it.exit();
        let bytes: Vec<_> = it.finish().into_iter().map(u64::to_le_bytes).collect();
        assert_eq!(
            bytes,
            [
                [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
                [0x61, 0x12, 64, 0, 0, 0, 0, 0],
                [0x7b, 0x2a, 0xf8, 0xff, 0, 0, 0, 0],
                [0x15, 0x00, 2, 0, 0, 0, 0, 0],
                [0x1c, 0x43, 0, 0, 0, 0, 0, 0],
                [0x85, 0, 0, 0, 1, 0, 0, 0],
                [0xb7, 0x01, 0, 0, 0, 0, 0, 0],
                [0xdb, 0x18, 8, 0, 1, 0, 0, 0],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }
}
