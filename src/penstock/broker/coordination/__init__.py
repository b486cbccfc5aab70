"""Coordinators: state machines that live beside a partition's log and write every change to it."""
