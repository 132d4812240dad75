//! Memory and events of other processes.

use crate::boundary::calls;
use crate::status::unsupported;

calls! { CALLS:
    fn cuIpcGetEventHandle() {
        Err(unsupported("events of other processes"))
    }
}
