------------------------------ MODULE MCChain ------------------------------
(* Sizes at which Chain is checked; specs/run.sh writes the .cfg files. *)
EXTENDS Chain
CONSTANTS a, b, c
Two == <<a, b>>
Three == <<a, b, c>>
=============================================================================
